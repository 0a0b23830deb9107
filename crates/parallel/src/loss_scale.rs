//! [`LossScaling`]: a loss factor that adapts to the range of the gradients; and the fixed factor of losses with several targets.

use ronde_engine::Loss;

/// The settings of dynamic loss scaling. Source: Micikevicius et al., ICLR 2018, section 3.2; the defaults are
/// those of PyTorch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaling {
    /// The initial factor. A power of two, so that scaling is exact.
    pub initial: f32,
    /// The number of consecutive updates after which the factor is doubled.
    pub growth_steps: u32,
}

impl LossScaling {
    /// The number of elements of its state, which is the last part of a replica.
    pub const STATE_LEN: u64 = 3;
}

impl Default for LossScaling {
    fn default() -> Self {
        Self {
            initial: 65_536.0,
            growth_steps: 2000,
        }
    }
}

/// The largest factor.
const SCALE_MAX: f32 = 16_777_216.0;

/// The indices of the three elements of the state.
const SCALE: usize = 0;
const IN_A_ROW: usize = 1;
const SKIPPED: usize = 2;

/// Returns the fixed factor of the gradient of a loss: the greatest power of two that is not greater than `1 / n`, where a sample
/// has at most `n` counted targets. With it, the gradient of a sample, which is a sum over its targets, is not greater than that
/// of a mean over them, whatever the format of the values between layers. It is exact, and updates undo it exactly.
pub(crate) fn fixed_factor(loss: &dyn Loss, targets_per_sample: usize) -> f32 {
    let counted = loss.counted_targets(&vec![0; targets_per_sample], 1).max(1);
    1.0 / counted.next_power_of_two() as f32
}

/// The factor, the updates since it changed, and the number of skipped steps. All are exact in `f32`, so that they
/// can be saved and sent with the rest of the state.
pub(crate) struct LossScale {
    config: Option<LossScaling>,
    fixed: f32,
    state: [f32; 3],
}

impl LossScale {
    /// Creates the scale at its initial factor, times `fixed`: see [`fixed_factor`].
    pub(crate) fn new(config: Option<LossScaling>, fixed: f32) -> Self {
        let initial = config.map_or(1.0, |config| config.initial);
        Self {
            config,
            fixed,
            state: [initial, 0.0, 0.0],
        }
    }

    /// Scales the gradient of the loss.
    pub(crate) fn multiply(&self, gradient: &mut [f32]) {
        let factor = self.state[SCALE] * self.fixed;
        if factor != 1.0 {
            gradient.iter_mut().for_each(|value| *value *= factor);
        }
    }

    /// Returns the inverse of the factor.
    pub(crate) fn inverse(&self) -> f32 {
        1.0 / (self.state[SCALE] * self.fixed)
    }

    /// Halves the factor after a gradient that was not finite. Returns false if that cannot help.
    pub(crate) fn skip(&mut self) -> bool {
        if self.config.is_none() || self.state[SCALE] <= 1.0 {
            return false;
        }
        self.state[SCALE] *= 0.5;
        self.state[IN_A_ROW] = 0.0;
        self.state[SKIPPED] += 1.0;
        true
    }

    /// Counts an applied gradient and doubles the factor when it is due.
    pub(crate) fn applied(&mut self) {
        let Some(config) = self.config else { return };
        self.state[IN_A_ROW] += 1.0;
        if self.state[IN_A_ROW] >= config.growth_steps as f32 {
            self.state[IN_A_ROW] = 0.0;
            self.state[SCALE] = (2.0 * self.state[SCALE]).min(SCALE_MAX);
        }
    }

    /// Returns the number of skipped steps.
    pub(crate) fn skipped(&self) -> u64 {
        self.state[SKIPPED] as u64
    }

    pub(crate) fn state(&self) -> Option<&[f32]> {
        self.config.map(|_| self.state.as_slice())
    }

    pub(crate) fn state_mut(&mut self) -> Option<&mut [f32]> {
        self.config.map(|_| self.state.as_mut_slice())
    }
}

#[cfg(test)]
mod tests {
    use ronde_engine::{CrossEntropy, SquaredError};

    use super::*;

    #[test]
    fn the_factor_halves_at_once_and_doubles_after_many_updates() {
        let config = LossScaling {
            initial: 4.0,
            growth_steps: 3,
        };
        let mut scale = LossScale::new(Some(config), 0.125);
        assert_eq!(scale.inverse(), 2.0);
        assert!(scale.skip());
        scale.applied();
        scale.applied();
        assert_eq!(scale.state(), Some(&[2.0, 2.0, 1.0][..]));
        scale.applied();
        assert_eq!(scale.state(), Some(&[4.0, 0.0, 1.0][..]));
        assert!(scale.skip() && scale.skip());
        assert!(!scale.skip(), "at 1 the gradient itself is not finite");
        assert_eq!(scale.skipped(), 3);
        let mut gradient = [3.0];
        scale.state_mut().unwrap()[SCALE] = 8.0;
        scale.multiply(&mut gradient);
        assert_eq!(gradient, [3.0]);
    }

    #[test]
    fn without_loss_scaling_nothing_is_scaled_or_skipped() {
        let mut scale = LossScale::new(None, 1.0);
        let mut gradient = [3.0];
        scale.multiply(&mut gradient);
        scale.applied();
        assert_eq!((gradient, scale.inverse()), ([3.0], 1.0));
        assert!(!scale.skip() && scale.state().is_none());
    }

    #[test]
    fn the_fixed_factor_is_a_power_of_two_below_the_share_of_a_target() {
        let classes = CrossEntropy { classes: 3 };
        for (targets, factor) in [(1, 1.0), (2, 0.5), (3, 0.25), (64, 1.0 / 64.0)] {
            assert_eq!(fixed_factor(&classes, targets), factor);
            assert_eq!(fixed_factor(&SquaredError, targets), 1.0);
        }
    }
}
