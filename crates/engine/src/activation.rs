//! [`Activation`]: the values passed from one layer to the next.

use std::sync::Arc;

use crate::memory::{give, take};

/// Values of any rank, f32, row-major; the first dimension is the number of samples.
///
/// Clones share the values; the last owner returns their memory for reuse.
#[derive(Debug, Clone)]
pub struct Activation {
    shape: Vec<usize>,
    values: Arc<SharedValues>,
}

#[derive(Debug)]
struct SharedValues(Vec<f32>);

impl Drop for SharedValues {
    fn drop(&mut self) {
        give(std::mem::take(&mut self.0));
    }
}

impl Activation {
    /// Takes ownership of values on the host. Cost: none.
    ///
    /// # Panics
    /// When the number of values does not match `shape`.
    #[must_use]
    pub fn from_host(shape: &[usize], values: Vec<f32>) -> Self {
        let elements: usize = shape.iter().product();
        assert_eq!(
            values.len(),
            elements,
            "{} values for shape {shape:?}",
            values.len()
        );
        Self {
            shape: shape.to_vec(),
            values: Arc::new(SharedValues(values)),
        }
    }

    /// Returns an activation without values, as the placeholder of a moved one.
    pub(crate) fn nothing() -> Self {
        Self::from_host(&[0], Vec::new())
    }

    /// Returns memory with unspecified contents, to be written before it is read.
    pub(crate) fn unwritten(shape: &[usize]) -> Self {
        Self::from_host(shape, take(shape.iter().product()))
    }

    /// Returns the length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of samples: the first dimension, 1 for a scalar.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the values.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        &self.values.0
    }

    /// Returns the values for writing. Cost: a copy when other owners share them.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        if Arc::get_mut(&mut self.values).is_none() {
            let mut copy = take(self.values.0.len());
            copy.copy_from_slice(&self.values.0);
            self.values = Arc::new(SharedValues(copy));
        }
        let values = Arc::get_mut(&mut self.values);
        &mut values.expect("the only owner after the copy").0
    }

    /// Returns the same values with another shape of as many elements. Cost: none.
    pub(crate) fn reshaped(self, shape: &[usize]) -> Self {
        debug_assert_eq!(self.values.0.len(), shape.iter().product::<usize>());
        Self {
            shape: shape.to_vec(),
            values: self.values,
        }
    }

    /// Returns the values without a copy when this is their only owner; otherwise copies them once.
    #[must_use]
    pub fn into_host(self) -> Vec<f32> {
        match Arc::try_unwrap(self.values) {
            Ok(mut values) => std::mem::take(&mut values.0),
            Err(shared) => {
                let mut copy = take(shared.0.len());
                copy.copy_from_slice(&shared.0);
                copy
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unique_vec_goes_through_without_a_copy() {
        let values = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let at = values.as_ptr();
        let activation = Activation::from_host(&[2, 3], values);
        assert_eq!(activation.shape(), [2, 3]);
        assert_eq!(activation.samples(), 2);
        let back = activation.into_host();
        assert_eq!(back.as_ptr(), at);
        assert_eq!(back, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn a_shared_activation_is_copied_before_it_changes() {
        let mut changed = Activation::from_host(&[2], vec![1.0, 2.0]);
        let other = changed.clone();
        changed.as_mut_slice()[0] = 5.0;
        assert_eq!(
            (changed.as_slice(), other.as_slice()),
            (&[5.0, 2.0][..], &[1.0, 2.0][..])
        );
        let at = changed.as_slice().as_ptr();
        changed.as_mut_slice()[1] = 6.0;
        let back = changed.reshaped(&[2, 1]).into_host();
        assert_eq!(back.as_ptr(), at);
    }
}
