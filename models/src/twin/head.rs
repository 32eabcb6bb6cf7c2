//! From a row of logits to one token's log-probability and the entropy, and from seeds back to dlogits (decision D5).
//!
//! Two distributions are at work. The entropy is that of p = softmax(logits / temperature) over the whole vocabulary. The
//! log-probability is that of the distribution which the token was drawn from: p, or, when a filter kept only some ids, p
//! renormalised over the kept set.

use super::{Float, sum};

/// **Math** log p_j = z_j − log Σ_l e^{z_l} with z = logits / temperature; the maximum of z is taken out of the sum.
pub fn log_softmax<T: Float>(logits: &[T], temperature: T) -> Vec<T> {
    let z: Vec<T> = logits.iter().map(|&x| x / temperature).collect();
    let max = z.iter().copied().fold(T::from_f64(f64::NEG_INFINITY), |a, b| if b > a { b } else { a });
    let log_sum = max + sum(z.len(), |j| (z[j] - max).exp()).ln();
    z.into_iter().map(|z| z - log_sum).collect()
}

/// H = −Σ_j p_j log p_j.
fn entropy<T: Float>(logp: &[T]) -> T {
    -sum(logp.len(), |j| logp[j].exp() * logp[j])
}

/// log p over the kept ids, in their order.
fn kept_log_softmax<T: Float>(logits: &[T], kept: &[u32], temperature: T) -> Vec<T> {
    let kept_logits: Vec<T> = kept.iter().map(|&id| logits[id as usize]).collect();
    log_softmax(&kept_logits, temperature)
}

/// Log-probability of `token` over the kept set (`None`: the vocabulary) and entropy over the vocabulary, in nats.
///
/// **Shapes** `logits` `[vocab]`.
///
/// **Panics** if `token` is not in the kept set: it cannot have been drawn.
pub fn token_fwd<T: Float>(logits: &[T], token: u32, kept: Option<&[u32]>, temperature: T) -> (T, T) {
    let all = log_softmax(logits, temperature);
    let logp = match kept {
        None => all[token as usize],
        Some(kept) => {
            let place = kept.iter().position(|&id| id == token).expect("the token is in its kept set");
            kept_log_softmax(logits, kept, temperature)[place]
        }
    };
    (logp, entropy(&all))
}

/// Seeds to dlogits.
///
/// **Math** dlogits_j += [ dlogp (1[j = token] − q_j) − dentropy p_j (log p_j + H) ] / temperature, where q is p
/// renormalised over the kept set and 0 outside it.
///
/// **Shapes** `logits`, `dlogits` `[vocab]`.
pub fn token_bwd<T: Float>(
    logits: &[T],
    token: u32,
    kept: Option<&[u32]>,
    temperature: T,
    dlogp: T,
    dentropy: T,
    dlogits: &mut [T],
) {
    let all = log_softmax(logits, temperature);
    let h = entropy(&all);
    for (d, &logp) in dlogits.iter_mut().zip(&all) {
        *d += -dentropy * logp.exp() * (logp + h) / temperature;
    }
    dlogits[token as usize] += dlogp / temperature;
    match kept {
        None => {
            for (d, &logp) in dlogits.iter_mut().zip(&all) {
                *d += -dlogp * logp.exp() / temperature;
            }
        }
        Some(kept) => {
            for (&id, logq) in kept.iter().zip(kept_log_softmax(logits, kept, temperature)) {
                dlogits[id as usize] += -dlogp * logq.exp() / temperature;
            }
        }
    }
}
