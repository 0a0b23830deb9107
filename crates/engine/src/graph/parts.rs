//! [`PartPlace`]: the parts of layers that a process computes, and [`PartExchange`] with the processes that compute the others.
//!
//! A layer may be divided into parts: groups of heads, columns and rows of matrices, rows of tables. Values between the parts
//! are sums over all of them or their concatenation. Sums follow the tree of the exact sum over the numbers of the parts, so
//! their bits do not depend on which process computes which part.
//!
//! Parts are inside one layer of the chain, so programs, pipelines and recomputation do not know them; a chain of layers that end
//! at each sum would need replicated layers in every program. Each part of a tensor is a separate tensor (`TensorPart` has its
//! position in the whole one), so buckets, optimizers, hashes and checkpoints need no strides. The flat state has a region for each
//! part. Tensors that belong to no part (of normalisations, biases after a sum) are on all ranks of a group, which have the same
//! gradient of them; the first one answers for them. Only the saved model has whole tensors.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ronde_core::exact::Node;

use super::TokenDivision;
use crate::activation::Activation;
use crate::device::Device;
use crate::device::kernel::{AddKernel, CopyRowsKernel, RowCopy};
use crate::lock_step::NotSummed;

/// Returns the elements of a part; parts differ by at most one.
pub(super) fn share(elements: usize, part: u32, parts: u32) -> Range<usize> {
    let border =
        |part: u32| (elements as u128 * u128::from(part) / u128::from(parts.max(1))) as usize;
    border(part)..border(part + 1)
}

/// Exchanges values between the processes that compute the parts of the same layers. All of them make the same calls in the
/// same order, and wait for each other.
pub trait PartExchange: Send + Sync {
    /// Returns the sum over all parts, element by element, along the tree over their numbers. `subtrees` has the sums of the
    /// complete subtrees of this process's parts in order (see [`ronde_core::exact::cover`]), all of one length.
    ///
    /// # Errors
    /// [`NotSummed`]: the pass cannot continue.
    fn sum(&self, subtrees: Vec<Vec<f32>>) -> Result<Vec<f32>, NotSummed>;

    /// Returns the elements of the same sum that belong to this process's parts. `elements` has the number of those of each
    /// part, in the order of the sum.
    ///
    /// # Errors
    /// [`NotSummed`]: the pass cannot continue.
    fn sum_scattered(
        &self,
        subtrees: Vec<Vec<f32>>,
        elements: &[usize],
    ) -> Result<Vec<f32>, NotSummed>;

    /// Returns the values of all parts, one after the other. `own` has those of this process's parts.
    ///
    /// # Errors
    /// [`NotSummed`]: the pass cannot continue.
    fn gather(&self, own: Vec<f32>) -> Result<Vec<f32>, NotSummed>;
}

/// The parts of layers that a process computes.
#[derive(Clone)]
pub struct PartPlace {
    own: Range<u32>,
    parts: u32,
    exchange: Option<Arc<dyn PartExchange>>,
}

impl fmt::Debug for PartPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parts {:?} of {}", self.own, self.parts)
    }
}

impl PartPlace {
    /// Returns the place of a process that computes all parts.
    #[must_use]
    pub fn all(parts: u32) -> Self {
        Self {
            own: 0..parts,
            parts,
            exchange: None,
        }
    }

    /// Returns the place of a process that computes some consecutive parts.
    #[must_use]
    pub fn shared(own: Range<u32>, parts: u32, exchange: Arc<dyn PartExchange>) -> Self {
        Self {
            own,
            parts,
            exchange: Some(exchange),
        }
    }

    /// Returns the place of a process that computes some parts, for planning on a device that computes nothing: values of the
    /// remaining parts are left out.
    #[must_use]
    pub fn planned(own: Range<u32>, parts: u32) -> Self {
        Self {
            own,
            parts,
            exchange: None,
        }
    }

    /// Returns the parts that the process computes.
    #[must_use]
    pub fn own(&self) -> Range<u32> {
        self.own.clone()
    }

    /// Returns whether the process computes a part; undivided values are computed by all.
    #[must_use]
    pub fn has(&self, part: Option<u32>) -> bool {
        part.is_none_or(|part| self.own.contains(&part))
    }

    /// Returns the sums of the complete subtrees of the own parts, from the values of these parts in order.
    fn subtrees(&self, device: &dyn Device, values: Vec<Activation>) -> Vec<Activation> {
        let add = |sum: &mut Activation, added: Activation| {
            AddKernel {
                y: sum.values_mut(device),
                x: added.values(),
            }
            .run_on(device);
        };
        add_subtrees(self.own.clone(), self.parts, values, add)
    }

    /// Returns the sum of a value over all parts, from those of the own parts in order.
    pub(crate) fn sum(
        &self,
        device: &dyn Device,
        values: Vec<Activation>,
    ) -> Result<Activation, NotSummed> {
        let subtrees = self.subtrees(device, values);
        let shape = subtrees
            .first()
            .map_or_else(Vec::new, |sum| sum.shape().to_vec());
        let mut sums = subtrees.into_iter();
        let Some(exchange) = &self.exchange else {
            return sums.next().ok_or(NotSummed);
        };
        let sum = exchange.sum(sums.map(|sum| sum.on_host().into_host()).collect())?;
        Ok(Activation::from_host(&shape, sum).on_device(device))
    }

    /// Returns the own tokens of the same sum.
    pub(crate) fn sum_by_tokens(
        &self,
        device: &dyn Device,
        values: Vec<Activation>,
        division: &TokenDivision,
    ) -> Result<Activation, NotSummed> {
        let subtrees = self.subtrees(device, values);
        let Some(exchange) = &self.exchange else {
            let sum = subtrees.first().ok_or(NotSummed)?;
            return Ok(division.take(device, sum, &self.own));
        };
        let shape = subtrees
            .first()
            .map_or_else(Vec::new, |sum| sum.shape().to_vec());
        let each_token = shape.iter().product::<usize>() / division.tokens().max(1);
        let elements = division.shares().parts;
        let elements: Vec<usize> = elements.iter().map(|tokens| tokens * each_token).collect();
        let all = 0..self.parts;
        let is_by_part = division.is_by_part(shape.first().copied().unwrap_or(1));
        let of_parts = subtrees.into_iter().map(|sum| {
            let by_part = match is_by_part {
                true => sum,
                false => division.take(device, &sum, &all),
            };
            by_part.on_host().into_host()
        });
        let sum = exchange.sum_scattered(of_parts.collect(), &elements)?;
        let shape = division.own_shape(&shape, &self.own);
        Ok(Activation::from_host(&shape, sum).on_device(device))
    }

    /// Returns a value with all tokens, from the own ones.
    pub(crate) fn with_all_tokens(
        &self,
        device: &dyn Device,
        own: Activation,
        division: &TokenDivision,
    ) -> Result<Activation, NotSummed> {
        let Some(exchange) = &self.exchange else {
            return Ok(division.put(device, &own, &self.own));
        };
        let all = 0..self.parts;
        let shape = division.own_shape(own.shape(), &all);
        let mut received = exchange.gather(own.on_host().into_host())?;
        received.resize(shape.iter().product(), 0.0);
        let by_part = Activation::from_host(&shape, received).on_device(device);
        Ok(match division.is_by_part(by_part.samples()) {
            true => by_part,
            false => division.put(device, &by_part, &all),
        })
    }

    /// Returns the sums of the complete subtrees of the own parts, from a vector of each of them.
    pub(crate) fn vector_subtrees(&self, vectors: impl Iterator<Item = Vec<f32>>) -> Vec<Vec<f32>> {
        let add = |sum: &mut Vec<f32>, added: Vec<f32>| {
            let each = sum.iter_mut().zip(added);
            each.for_each(|(sum, added)| *sum += added);
        };
        add_subtrees(self.own.clone(), self.parts, vectors, add)
    }

    /// Returns the sum over all parts of vectors, from the sums of the complete subtrees of the own parts.
    pub(crate) fn sum_vectors(&self, subtrees: Vec<Vec<f32>>) -> Result<Vec<f32>, NotSummed> {
        match &self.exchange {
            Some(exchange) => exchange.sum(subtrees),
            None => subtrees.into_iter().next().ok_or(NotSummed),
        }
    }

    /// Returns the values of all parts side by side along the last dimension, from those of the own parts in order. `widths` has
    /// the length of this dimension for each part.
    pub(crate) fn join(
        &self,
        device: &dyn Device,
        values: Vec<Activation>,
        widths: &[usize],
    ) -> Result<Activation, NotSummed> {
        let mut shape = values
            .first()
            .map_or_else(Vec::new, |value| value.shape().to_vec());
        let Some(last) = shape.last_mut() else {
            return Err(NotSummed);
        };
        *last = widths.iter().sum();
        let all = *last;
        let rows = shape.iter().product::<usize>() / all.max(1);
        let mut joined = Activation::unwritten(device, &shape);
        let mut own = values.into_iter();
        let mut received = match &self.exchange {
            Some(exchange) => {
                let own = own.by_ref().flat_map(|value| value.on_host().into_host());
                exchange.gather(own.collect())?
            }
            None => Vec::new(),
        };
        let mut before = 0;
        for (part, &width) in (0..self.parts).zip(widths) {
            let value = if self.exchange.is_some() {
                let rest = received.split_off((rows * width).min(received.len()));
                let of_part = std::mem::replace(&mut received, rest);
                Some(Activation::from_host(&[rows * width], of_part).on_device(device))
            } else if self.has(Some(part)) {
                own.next()
            } else {
                None
            };
            if let Some(value) = value {
                let copy = RowCopy {
                    from: [width, 0],
                    to: [all, before],
                    length: width,
                };
                CopyRowsKernel {
                    copy,
                    from: value.values(),
                    to: joined.values_mut(device),
                }
                .run_on(device);
            }
            before += width;
        }
        Ok(joined)
    }

    /// Returns the values of the own parts side by side along the last dimension.
    pub(crate) fn own_joined(
        &self,
        device: &dyn Device,
        values: Vec<Activation>,
        widths: &[usize],
    ) -> Activation {
        let widths = &widths[self.own.start as usize..self.own.end as usize];
        let mut values = values.into_iter();
        if widths.len() == 1 {
            return values.next().unwrap_or_else(Activation::nothing);
        }
        let all: usize = widths.iter().sum();
        let mut before = 0;
        let mut joined = Activation::nothing();
        for (value, &width) in values.zip(widths) {
            if before == 0 {
                let mut shape = value.shape().to_vec();
                if let Some(last) = shape.last_mut() {
                    *last = all;
                }
                joined = Activation::unwritten(device, &shape);
            }
            let copy = RowCopy {
                from: [width, 0],
                to: [all, before],
                length: width,
            };
            CopyRowsKernel {
                copy,
                from: value.values(),
                to: joined.values_mut(device),
            }
            .run_on(device);
            before += width;
        }
        joined
    }

    /// Returns the values of all parts, one after the other.
    pub(crate) fn gather(&self, own: Vec<f32>) -> Result<Vec<f32>, NotSummed> {
        match &self.exchange {
            Some(exchange) => exchange.gather(own),
            None => Ok(own),
        }
    }

    /// Returns the columns of each own part of a value that has those of all parts, or of the own ones alone.
    pub(crate) fn columns(
        &self,
        device: &dyn Device,
        joined: &Activation,
        widths: &[usize],
        is_apart: bool,
    ) -> Vec<Activation> {
        let own = self.own.start as usize..self.own.end as usize;
        let first = if is_apart { own.start } else { 0 };
        let all = joined.shape().last().copied().unwrap_or(1);
        let of_part = |part: usize| {
            let width = widths[part];
            let before = widths[first..part].iter().sum();
            let mut shape = joined.shape().to_vec();
            if let Some(last) = shape.last_mut() {
                *last = width;
            }
            let mut own = Activation::unwritten(device, &shape);
            let copy = RowCopy {
                from: [all, before],
                to: [width, 0],
                length: width,
            };
            CopyRowsKernel {
                copy,
                from: joined.values(),
                to: own.values_mut(device),
            }
            .run_on(device);
            own
        };
        own.map(of_part).collect()
    }
}

/// Adds the values of consecutive parts along the tree over `parts` parts; returns the sums of complete subtrees in order.
fn add_subtrees<T>(
    own: Range<u32>,
    parts: u32,
    values: impl IntoIterator<Item = T>,
    add: impl Fn(&mut T, T),
) -> Vec<T> {
    let mut subtrees: Vec<(Node, T)> = Vec::new();
    for (part, value) in own.zip(values) {
        subtrees.push((Node::leaf(part, parts), value));
        while let [.., left, right] = &subtrees[..]
            && right.0.is_right_sibling_of(left.0)
        {
            let Some((_, added)) = subtrees.pop() else {
                break;
            };
            if let Some((node, sum)) = subtrees.last_mut() {
                add(sum, added);
                *node = node.parent(parts);
            }
        }
    }
    subtrees.into_iter().map(|(_, sum)| sum).collect()
}
