//! [`LossScaling`]: a factor of the loss that follows what the gradients bear.

/// How the factor changes. Source: Micikevicius et al., ICLR 2018, section 3.2; defaults are
/// PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaling {
    /// The factor at the beginning: a power of two, so that it changes no digit.
    pub initial: f32,
    /// After this many updates in a row without a skipped one the factor is doubled.
    pub growth_steps: u32,
}

impl LossScaling {
    /// Numbers of the state that the factor brings with it, the last part of a replica.
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

/// Largest factor.
const SCALE_MAX: f32 = 16_777_216.0;

/// Where the three numbers of the state are.
const SCALE: usize = 0;
const IN_A_ROW: usize = 1;
const SKIPPED: usize = 2;

/// The factor, updates since it changed, and steps that were skipped: numbers that `f32` holds
/// exactly, so that they travel with the rest of the state.
pub(crate) struct LossScale {
    config: Option<LossScaling>,
    state: [f32; 3],
}

impl LossScale {
    pub(crate) fn new(config: Option<LossScaling>) -> Self {
        let initial = config.map_or(1.0, |config| config.initial);
        Self {
            config,
            state: [initial, 0.0, 0.0],
        }
    }

    /// Scales the gradient of the loss.
    pub(crate) fn multiply(&self, gradient: &mut [f32]) {
        if self.config.is_some() {
            let scale = self.state[SCALE];
            gradient.iter_mut().for_each(|value| *value *= scale);
        }
    }

    /// What takes the factor out again; `None` when there is none.
    pub(crate) fn inverse(&self) -> Option<f32> {
        self.config.map(|_| 1.0 / self.state[SCALE])
    }

    /// The gradient was not finite: halves the factor. False when that cannot help.
    pub(crate) fn skip(&mut self) -> bool {
        if self.config.is_none() || self.state[SCALE] <= 1.0 {
            return false;
        }
        self.state[SCALE] *= 0.5;
        self.state[IN_A_ROW] = 0.0;
        self.state[SKIPPED] += 1.0;
        true
    }

    /// The gradient was applied.
    pub(crate) fn applied(&mut self) {
        let Some(config) = self.config else { return };
        self.state[IN_A_ROW] += 1.0;
        if self.state[IN_A_ROW] >= config.growth_steps as f32 {
            self.state[IN_A_ROW] = 0.0;
            self.state[SCALE] = (2.0 * self.state[SCALE]).min(SCALE_MAX);
        }
    }

    /// Steps so far that changed nothing.
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
    use super::*;

    #[test]
    fn the_factor_falls_at_once_and_rises_slowly() {
        let mut scale = LossScale::new(Some(LossScaling {
            initial: 4.0,
            growth_steps: 3,
        }));
        assert_eq!(scale.inverse(), Some(0.25));
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
        assert_eq!(gradient, [24.0]);
    }

    #[test]
    fn without_it_nothing_is_scaled_or_skipped() {
        let mut scale = LossScale::new(None);
        let mut gradient = [3.0];
        scale.multiply(&mut gradient);
        scale.applied();
        assert_eq!((gradient, scale.inverse()), ([3.0], None));
        assert!(!scale.skip() && scale.state().is_none());
    }
}
