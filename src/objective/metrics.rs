//! What an update tells about its losses.

/// The loss of one mini-batch and its parts, each averaged as the configuration says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossMetrics {
    /// The whole loss.
    pub loss: f64,
    /// The clipped policy loss.
    pub policy_loss: f64,
    /// Mean over tokens of old less new log-probability.
    pub ppo_kl: f64,
    /// Share of tokens whose ratio was clipped.
    pub clip_fraction: f64,
    /// Share of tokens at which the dual clip binds.
    pub clip_fraction_lower: f64,
    /// Largest distance of a ratio from 1; 0 in the first update on the policy's own samples.
    pub max_ratio_error: f64,
    /// Entropy in nats, averaged like the loss.
    pub entropy: f64,
    /// Divergence from the reference in nats, averaged like the loss; 0 without a reference.
    pub kl: f64,
    /// The clipped value loss, a mean over tokens.
    pub value_loss: f64,
    /// Share of tokens whose value was clipped.
    pub value_clip_fraction: f64,
    /// Mean predicted value.
    pub value_mean: f64,
}

impl LossMetrics {
    /// The metrics under their names; those of a value head or a reference only where there is one.
    pub fn named(&self, has_value: bool, has_reference: bool) -> Vec<(&'static str, f64)> {
        let mut named = vec![
            ("policy/loss", self.loss),
            ("policy/pg_loss", self.policy_loss),
            ("policy/ppo_kl", self.ppo_kl),
            ("policy/pg_clipfrac", self.clip_fraction),
            ("policy/pg_clipfrac_lower", self.clip_fraction_lower),
            ("policy/max_ratio_error", self.max_ratio_error),
            ("policy/entropy_loss", self.entropy),
        ];
        if has_reference {
            named.push(("policy/kl_loss", self.kl));
        }
        if has_value {
            named.push(("value/vf_loss", self.value_loss));
            named.push(("value/vf_clipfrac", self.value_clip_fraction));
            named.push(("value/vpred_mean", self.value_mean));
        }
        named
    }

    /// The mean of several mini-batches' metrics (of `max_ratio_error` the maximum); all 0 for none.
    pub fn mean(metrics: &[LossMetrics]) -> LossMetrics {
        let over =
            |field: fn(&LossMetrics) -> f64| metrics.iter().map(field).sum::<f64>() / metrics.len().max(1) as f64;
        LossMetrics {
            loss: over(|m| m.loss),
            policy_loss: over(|m| m.policy_loss),
            ppo_kl: over(|m| m.ppo_kl),
            clip_fraction: over(|m| m.clip_fraction),
            clip_fraction_lower: over(|m| m.clip_fraction_lower),
            max_ratio_error: metrics.iter().map(|m| m.max_ratio_error).fold(0.0, f64::max),
            entropy: over(|m| m.entropy),
            kl: over(|m| m.kl),
            value_loss: over(|m| m.value_loss),
            value_clip_fraction: over(|m| m.value_clip_fraction),
            value_mean: over(|m| m.value_mean),
        }
    }
}
