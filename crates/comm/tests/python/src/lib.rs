//! Process groups from Python, enough to show that they can be embedded: `Group.connect`,
//! `Group.all_reduce` in place on numpy arrays and torch tensors.
//!
//! A real binding needs the same properties: the interpreter's lock is not held while ranks wait for each
//! other, memory is lent and not copied, and a KeyboardInterrupt ends the wait on all ranks.

mod group;
mod lent;

#[pyo3::pymodule]
mod ronde_spike {
    #[pymodule_export]
    use crate::group::{Group, Listener};
}
