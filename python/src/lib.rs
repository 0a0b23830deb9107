//! `ronde._native`: the part of the Python package that is written in Rust.
//!
//! The interpreter's lock is not held while a call waits for other workers, memory of Python is lent and not copied, and a
//! KeyboardInterrupt ends a wait on all ranks.

mod batches;
mod group;
mod memory;
mod step_loop;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::batches::Batches;
    #[pymodule_export]
    use crate::group::{Group, Listener};
    #[pymodule_export]
    use crate::step_loop::{ComputeStep, StepLoop, StepUpdate};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python expects")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
