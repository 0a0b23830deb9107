//! [`CollectivesExt`]: blocking calls on slices over [`Collectives`].
//!
//! Methods that take `&mut [T]` work in place; methods that take `&[T]` return the result. Every call
//! copies into and out of a buffer of the group. To avoid the copies, keep the values in a [`Buffer`]
//! and use [`CollectivesExt::run`].

use crate::buffer::{Buffer, Element};
use crate::collectives::{Collectives, Operation};
use crate::dtype::{DType, ReduceOp};
use crate::error::CollectiveError;
use crate::rank::GroupRank;

/// Blocking convenience methods for [`Collectives`].
pub trait CollectivesExt: Collectives {
    /// Starts an operation and waits for it.
    ///
    /// # Errors
    /// Those of the operation.
    fn run(&self, operation: Operation, buffer: Buffer) -> Result<Buffer, CollectiveError> {
        self.start_and_wait(operation, buffer)
    }

    /// Runs an operation on a copy of `values`.
    ///
    /// # Errors
    /// Those of the operation.
    fn run_on<T: Element>(
        &self,
        operation: Operation,
        values: &[T],
    ) -> Result<Buffer, CollectiveError> {
        let mut buffer = self.allocate(T::DTYPE, values.len())?;
        buffer.as_mut_slice::<T>().copy_from_slice(values);
        self.run(operation, buffer)
    }

    /// Reduces `values` over all ranks in place.
    ///
    /// # Errors
    /// Those of the operation.
    fn all_reduce<T: Element>(
        &self,
        values: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let result = self.run_on(Operation::AllReduce(op), values)?;
        values.copy_from_slice(result.as_slice());
        Ok(())
    }

    /// Reduces all ranks' values into the root's `values`; the values of other ranks are unchanged.
    ///
    /// # Errors
    /// Those of the operation.
    fn reduce<T: Element>(
        &self,
        values: &mut [T],
        op: ReduceOp,
        root: GroupRank,
    ) -> Result<(), CollectiveError> {
        let result = self.run_on(Operation::Reduce { op, root }, values)?;
        if self.rank() == root {
            values.copy_from_slice(result.as_slice());
        }
        Ok(())
    }

    /// Returns this rank's part of the reduction of all ranks' values: `values.len() / n` elements.
    ///
    /// # Errors
    /// Those of the operation.
    fn reduce_scatter<T: Element>(
        &self,
        values: &[T],
        op: ReduceOp,
    ) -> Result<Vec<T>, CollectiveError> {
        let result = self.run_on(Operation::ReduceScatter(op), values)?;
        Ok(result.as_slice().to_vec())
    }

    /// Returns all ranks' values in rank order; lengths may differ between ranks.
    ///
    /// # Errors
    /// Those of the operation.
    fn all_gather<T: Element>(&self, values: &[T]) -> Result<Vec<T>, CollectiveError> {
        Ok(self
            .run_on(Operation::AllGather, values)?
            .as_slice()
            .to_vec())
    }

    /// Returns all ranks' values in rank order on the root, and `None` elsewhere; lengths may differ.
    ///
    /// # Errors
    /// Those of the operation.
    fn gather<T: Element>(
        &self,
        values: &[T],
        root: GroupRank,
    ) -> Result<Option<Vec<T>>, CollectiveError> {
        let result = self.run_on(Operation::Gather { root }, values)?;
        Ok((self.rank() == root).then(|| result.as_slice().to_vec()))
    }

    /// Fills `part` with this rank's part of the root's `all`, which has `n * part.len()` elements on the root
    /// and is ignored elsewhere.
    ///
    /// # Errors
    /// Those of the operation; [`CollectiveError::Invalid`] on the root if `all` has another length.
    fn scatter<T: Element>(
        &self,
        all: &[T],
        part: &mut [T],
        root: GroupRank,
    ) -> Result<(), CollectiveError> {
        let input = if self.rank() == root { all } else { &*part };
        if self.rank() == root && all.len() != part.len() * self.size() {
            return Err(CollectiveError::Invalid {
                operation: "scatter".to_owned(),
                problem: format!(
                    "{} elements for {} ranks with {} each",
                    all.len(),
                    self.size(),
                    part.len()
                ),
            });
        }
        let result = self.run_on(Operation::Scatter { root }, input)?;
        part.copy_from_slice(result.as_slice());
        Ok(())
    }

    /// Copies the root's values to every rank.
    ///
    /// # Errors
    /// Those of the operation.
    fn broadcast<T: Element>(
        &self,
        values: &mut [T],
        root: GroupRank,
    ) -> Result<(), CollectiveError> {
        let result = self.run_on(Operation::Broadcast { root }, values)?;
        values.copy_from_slice(result.as_slice());
        Ok(())
    }

    /// Sends part `r` of `values` to rank `r` and replaces it with the part received from rank `r`. All parts
    /// have the same length.
    ///
    /// # Errors
    /// Those of the operation.
    fn all_to_all<T: Element>(&self, values: &mut [T]) -> Result<(), CollectiveError> {
        let result = self.run_on(Operation::AllToAll, values)?;
        values.copy_from_slice(result.as_slice());
        Ok(())
    }

    /// Sends `parts[r]` to rank `r` and returns the parts received, by rank. This takes two operations; the
    /// first one exchanges the lengths.
    ///
    /// # Errors
    /// Those of the operations; [`CollectiveError::Invalid`] unless there is a part for each rank.
    fn all_to_all_unequal<T: Element>(
        &self,
        parts: &[Vec<T>],
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        if parts.len() != self.size() {
            return Err(CollectiveError::Invalid {
                operation: "all_to_all_unequal".to_owned(),
                problem: format!("{} parts for {} ranks", parts.len(), self.size()),
            });
        }
        let send_lens: Vec<usize> = parts.iter().map(Vec::len).collect();
        let mut lens: Vec<i64> = send_lens.iter().map(|&len| len as i64).collect();
        self.all_to_all(&mut lens)?;
        let receive_lens: Vec<usize> = lens.iter().map(|&len| len as usize).collect();
        let operation = Operation::AllToAllUnequal {
            send_lens,
            receive_lens: receive_lens.clone(),
        };
        let result = self.run_on(operation, &parts.concat())?;
        let mut rest = result.as_slice::<T>();
        let mut received = Vec::with_capacity(receive_lens.len());
        for len in receive_lens {
            let (part, after) = rest.split_at(len);
            received.push(part.to_vec());
            rest = after;
        }
        Ok(received)
    }

    /// Waits until all ranks have called this.
    ///
    /// # Errors
    /// Those of the operation.
    fn barrier(&self) -> Result<(), CollectiveError> {
        self.run(Operation::Barrier, self.allocate(DType::U8, 0)?)
            .map(drop)
    }
}

impl<C: Collectives + ?Sized> CollectivesExt for C {}
