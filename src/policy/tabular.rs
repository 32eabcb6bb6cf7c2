//! A policy without a model: one row of logits for every context, a context being the last few ids or the whole prefix.
//!
//! It answers the same trait as the model, in f64 and in microseconds, so that the whole RL side is tested without a
//! tensor. Updates are plain gradient descent; a context never seen has the logits of [`Tabular::prior`].

use super::{
    Finish, Policy, PolicyError, Request, Response, Row, Sampling, SequenceId, Slots, Stop, TokenSeeds, TokenValues,
    Update, Weights,
};
use ragen_models::random::Key;
use std::collections::BTreeMap;

/// Logits and value of one context.
#[derive(Clone, Debug, PartialEq)]
struct Cell {
    logits: Vec<f64>, // [vocab]
    value: f64,
}

/// A table of logits by context.
#[derive(Clone, Debug)]
pub struct Tabular {
    /// Logits of a context that was never trained, `[vocab]`; `-inf` forbids an id.
    pub prior: Vec<f64>,
    /// Ids that make a context: the last so many, or the whole prefix.
    pub order: Option<usize>,
    /// Whether values are given.
    pub value: bool,
    /// Longest sequence in tokens.
    pub max_positions: usize,
    /// Largest global gradient norm; 0 does not clip.
    pub clip_norm: f64,
    cells: BTreeMap<u64, Cell>,
    reference: BTreeMap<u64, Cell>,
    gradients: BTreeMap<u64, Cell>,
    sequences: Slots<Vec<u32>>,
}

impl Tabular {
    /// A policy that gives every context the logits `prior`, without values, with contexts of the whole prefix.
    pub fn new(prior: Vec<f64>) -> Self {
        Tabular {
            prior,
            order: None,
            value: false,
            max_positions: usize::MAX,
            clip_norm: 0.0,
            cells: BTreeMap::new(),
            reference: BTreeMap::new(),
            gradients: BTreeMap::new(),
            sequences: Slots::default(),
        }
    }

    /// The gradients gathered so far: contexts in order, a context's logits before its value.
    pub fn gradients(&self) -> Vec<f64> {
        self.gradients.values().flat_map(|c| c.logits.iter().copied().chain([c.value])).collect()
    }

    /// Number of contexts that were trained.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether nothing was trained yet.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn context(&self, prefix: &[u32]) -> u64 {
        let start = self.order.map_or(0, |order| prefix.len().saturating_sub(order));
        prefix[start..].iter().fold(Key::new(0), |key, &id| key.with(id.into())).bits(0)
    }

    /// Probabilities at `temperature`, entropy and value of the context `prefix`.
    fn distribution(&self, cells: &BTreeMap<u64, Cell>, prefix: &[u32], temperature: f32) -> (Vec<f64>, f64, f64) {
        let cell = cells.get(&self.context(prefix));
        let logits = cell.map_or(&self.prior, |c| &c.logits);
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weight = |z: &f64| if z.is_finite() { ((z - max) / f64::from(temperature)).exp() } else { 0.0 };
        let mut p: Vec<f64> = logits.iter().map(weight).collect();
        let sum: f64 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= sum);
        let entropy = -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>();
        (p, entropy, cell.map_or(0.0, |c| c.value))
    }

    fn values(&self, cells: &BTreeMap<u64, Cell>, rows: &[Row<'_>], temperature: f32) -> TokenValues {
        let mut out = TokenValues::default();
        for row in rows {
            for &t in row.targets {
                let (p, entropy, value) = self.distribution(cells, &row.ids[..t as usize], temperature);
                out.logp.push(p[row.ids[t as usize] as usize].ln() as f32);
                out.entropy.push(entropy as f32);
                if self.value {
                    out.value.push(value as f32);
                }
            }
        }
        out
    }
}

fn check_rows(rows: &[Row<'_>]) -> Result<(), PolicyError> {
    match rows.iter().any(|row| !row.kept.is_empty()) {
        true => Err(PolicyError::Invalid("the tabular policy has no kept sets".into())),
        false => Ok(()),
    }
}

impl Policy for Tabular {
    fn max_positions(&self) -> usize {
        self.max_positions
    }

    fn has_value(&self) -> bool {
        self.value
    }

    fn open(&mut self) -> SequenceId {
        self.sequences.open(Vec::new())
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.close(sequence);
    }

    fn generate(
        &mut self,
        requests: &[Request<'_>],
        sampling: &Sampling,
        stop: &Stop<'_>,
    ) -> Result<Vec<Response>, PolicyError> {
        if sampling.top_k != 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0 {
            return Err(PolicyError::Invalid("the tabular policy samples by temperature only".into()));
        }
        let greedy = sampling.temperature == 0.0;
        let temperature = if greedy { 1.0 } else { sampling.temperature };
        let mut responses = Vec::with_capacity(requests.len());
        for request in requests {
            let mut ids = std::mem::take(self.sequences.get_mut(request.sequence)?);
            ids.extend_from_slice(request.prompt);
            let mut response = Response { ids: vec![], logps: vec![], kept: vec![], finish: Finish::Length };
            while response.ids.len() < request.max_new_tokens {
                if ids.len() >= self.max_positions {
                    response.finish = Finish::Context;
                    break;
                }
                let (p, ..) = self.distribution(&self.cells, &ids, temperature);
                let id = match greedy {
                    true => (0..p.len()).fold(0, |best, i| if p[i] > p[best] { i } else { best }),
                    false => draw(&p, request.key.uniform(ids.len() as u64)),
                };
                ids.push(id as u32);
                response.ids.push(id as u32);
                response.logps.push(p[id].ln() as f32);
                if stop.ends(&response.ids) {
                    response.finish = Finish::Stop;
                    break;
                }
            }
            *self.sequences.get_mut(request.sequence)? = ids;
            responses.push(response);
        }
        Ok(responses)
    }

    fn score(&mut self, weights: Weights, rows: &[Row<'_>], temperature: f32) -> Result<TokenValues, PolicyError> {
        check_rows(rows)?;
        let cells = match weights {
            Weights::Policy => &self.cells,
            Weights::Reference => &self.reference,
        };
        Ok(self.values(cells, rows, temperature))
    }

    fn freeze_reference(&mut self) -> Result<(), PolicyError> {
        self.reference = self.cells.clone();
        Ok(())
    }

    fn accumulate(
        &mut self,
        rows: &[Row<'_>],
        temperature: f32,
        objective: &mut dyn FnMut(&TokenValues) -> TokenSeeds,
    ) -> Result<TokenValues, PolicyError> {
        check_rows(rows)?;
        let values = self.values(&self.cells, rows, temperature);
        let seeds = objective(&values);
        let seed = |of: &[f32], i: usize| f64::from(of.get(i).copied().unwrap_or(0.0));
        let mut i = 0;
        for row in rows {
            for &t in row.targets {
                let (prefix, id) = (&row.ids[..t as usize], row.ids[t as usize] as usize);
                let (p, entropy, _) = self.distribution(&self.cells, prefix, temperature);
                let zero = || Cell { logits: vec![0.0; p.len()], value: 0.0 };
                let cell = self.gradients.entry(self.context(prefix)).or_insert_with(zero);
                let (dlogp, dentropy) = (seed(&seeds.logp, i), seed(&seeds.entropy, i));
                for (k, dz) in cell.logits.iter_mut().enumerate() {
                    let hit = if k == id { 1.0 } else { 0.0 };
                    let plogp = if p[k] > 0.0 { p[k] * (p[k].ln() + entropy) } else { 0.0 };
                    *dz += (dlogp * (hit - p[k]) - dentropy * plogp) / f64::from(temperature);
                }
                cell.value += seed(&seeds.value, i);
                i += 1;
            }
        }
        Ok(values)
    }

    fn take_gradients(&mut self) -> Result<Vec<f32>, PolicyError> {
        let taken = self.gradients().into_iter().map(|x| x as f32).collect();
        self.gradients.clear();
        Ok(taken)
    }

    fn update(&mut self, lr: f64) -> Result<Update, PolicyError> {
        let gradients = std::mem::take(&mut self.gradients);
        let square = |c: &Cell| c.logits.iter().map(|g| g * g).sum::<f64>() + c.value * c.value;
        let grad_norm = gradients.values().map(square).sum::<f64>().sqrt();
        if !grad_norm.is_finite() {
            return Ok(Update { grad_norm, skipped: true });
        }
        let clipped = self.clip_norm > 0.0 && grad_norm > self.clip_norm;
        let rate = if clipped { lr * self.clip_norm / grad_norm } else { lr };
        for (context, gradient) in gradients {
            let fresh = || Cell { logits: self.prior.clone(), value: 0.0 };
            let cell = self.cells.entry(context).or_insert_with(fresh);
            cell.logits.iter_mut().zip(&gradient.logits).for_each(|(z, g)| *z -= rate * g);
            cell.value -= rate * gradient.value;
        }
        Ok(Update { grad_norm, skipped: false })
    }

    fn update_values(&mut self, lr: f64) -> Result<Update, PolicyError> {
        self.gradients.values_mut().for_each(|cell| cell.logits.fill(0.0));
        self.update(lr)
    }
}

/// The index whose share of the unit interval holds `u`; never one of probability 0.
fn draw(p: &[f64], u: f64) -> usize {
    let mut below = 0.0;
    let mut last = 0;
    for (i, &p) in p.iter().enumerate().filter(|(_, p)| **p > 0.0) {
        below += p;
        last = i;
        if u < below {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Central differences of `sum_i seed_i * value_i` over every logit and value.
    #[test]
    fn gradients_are_those_of_the_values() {
        let mut policy = Tabular::new(vec![0.3, -0.2, 0.9]);
        policy.order = Some(1);
        policy.value = true;
        let ids = [0, 2, 1, 1, 0];
        let targets = [1, 2, 4];
        let rows = [Row { ids: &ids, targets: &targets, kept: &[] }];
        let seeds =
            TokenSeeds { logp: vec![0.7, -1.1, 0.4], entropy: vec![0.2, 0.5, -0.3], value: vec![1.0, 2.0, -0.5] };
        policy.accumulate(&rows, 0.7, &mut |_| seeds.clone()).unwrap();
        let gradients = policy.gradients.clone();
        policy.update(1e-3).unwrap(); // creates the cells
        policy.accumulate(&rows, 0.7, &mut |_| seeds.clone()).unwrap();
        let loss = |policy: &Tabular| {
            let mut sum = 0.0;
            for (i, &t) in targets.iter().enumerate() {
                let (p, h, v) = policy.distribution(&policy.cells, &ids[..t as usize], 0.7);
                sum += f64::from(seeds.logp[i]) * p[ids[t as usize] as usize].ln()
                    + f64::from(seeds.entropy[i]) * h
                    + f64::from(seeds.value[i]) * v;
            }
            sum
        };
        assert_eq!(gradients.len(), 3);
        for (context, gradient) in policy.gradients.clone() {
            for k in 0..3 {
                let mut up = policy.clone();
                up.cells.get_mut(&context).unwrap().logits[k] += 1e-6;
                let mut down = policy.clone();
                down.cells.get_mut(&context).unwrap().logits[k] -= 1e-6;
                let numeric = (loss(&up) - loss(&down)) / 2e-6;
                assert!((numeric - gradient.logits[k]).abs() < 1e-7, "{numeric} {}", gradient.logits[k]);
            }
        }
    }

    #[test]
    fn sampled_logps_are_the_scored_ones_bit_for_bit() {
        let mut policy = Tabular::new(vec![0.1, 0.2, 0.3, f64::NEG_INFINITY]);
        let sequence = policy.open();
        let sampling = Sampling { temperature: 0.7, ..Sampling::default() };
        let request = Request { sequence, prompt: &[0, 1], key: Key::new(5), max_new_tokens: 20 };
        let response = policy.generate(&[request], &sampling, &Stop::default()).unwrap().remove(0);
        assert_eq!((response.ids.len(), response.finish), (20, Finish::Length));
        assert!(!response.ids.contains(&3));
        let ids: Vec<u32> = [0, 1].into_iter().chain(response.ids).collect();
        let targets: Vec<u32> = (2..22).collect();
        let row = Row { ids: &ids, targets: &targets, kept: &[] };
        assert_eq!(policy.score(Weights::Policy, &[row], 0.7).unwrap().logp, response.logps);
    }
}
