//! [`StepLoop`]: a training loop that continues with the same bits when workers are lost or join.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use ronde::train::step_loop::{
    ComputeStep as OpenStep, ShardSamples, StepAction, StepLoop as Loop, StepUpdate as Update,
};
use ronde::train::{StepLoopPlan, TrainError};
use ronde::{Error, Worker};

use crate::batches::Batches;
use crate::memory::View;

fn failed(error: &TrainError) -> PyErr {
    PyRuntimeError::new_err(match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A training loop as a sequence of actions. Each step is a transaction of all workers, so the result has the same bits on any
/// number of workers, also when workers are lost or join under `ronde run --elastic`.
#[pyclass(frozen)]
pub(crate) struct StepLoop(Mutex<Parts>);

struct Parts {
    steps: Loop,
    /// The connection to the supervisor, which ends with the loop.
    _worker: Worker,
}

#[pymethods]
impl StepLoop {
    /// Joins the job that started this process, or begins one of a single worker. All workers pass the same batches and steps.
    #[new]
    fn new(py: Python<'_>, name: &str, batches: &Batches, steps: u64) -> PyResult<Self> {
        let plan = StepLoopPlan {
            batches: batches.plan,
            shards: batches.shards,
            steps,
        };
        let started = py.detach(|| -> Result<Parts, Error> {
            let mut worker = Worker::start()?;
            let steps = worker.step_loop(name, plan)?;
            Ok(Parts {
                steps,
                _worker: worker,
            })
        });
        let parts = started.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(Self(Mutex::new(parts)))
    }

    /// Whether this is rank 0 of the current generation, which reports for all.
    #[getter]
    fn is_first(&self, py: Python<'_>) -> bool {
        py.detach(|| locked(&self.0).steps.is_first())
    }

    /// Returns the next action: a `ComputeStep`, a `StepUpdate`, or `None` after the last step. `state` is everything that an
    /// update changes, as writable arrays of float32, always with the same lengths: it is compared across the workers, and
    /// overwritten on one that joins.
    fn next(&self, py: Python<'_>, state: Vec<Bound<'_, PyAny>>) -> PyResult<Option<Py<PyAny>>> {
        let views = state.iter().map(View::writable);
        let mut views = views.collect::<PyResult<Vec<View>>>()?;
        #[expect(unsafe_code, reason = "memory of Python is changed where it lies")]
        // SAFETY: the caller waits for this call, and passes each array once.
        let slices = views.iter_mut().map(|view| unsafe { view.floats_mut() });
        let mut slices = slices.collect::<PyResult<Vec<&mut [f32]>>>()?;
        let action = py.detach(|| locked(&self.0).steps.next(&mut slices));
        Ok(match action.map_err(|error| failed(&error))? {
            None => None,
            Some(StepAction::Compute(step)) => {
                let shards = step.shards();
                let open = Mutex::new(Some(step));
                Some(Py::new(py, ComputeStep { open, shards })?.into_any())
            }
            Some(StepAction::Apply(update)) => Some(Py::new(py, StepUpdate(update))?.into_any()),
        })
    }

    /// Sums the gradients of a step over all workers and votes on it. An error is returned, or recovered from, by the next call
    /// of `next`.
    fn reduce_and_vote(&self, py: Python<'_>, step: &ComputeStep) -> PyResult<()> {
        let step = locked(&step.open).take().ok_or_else(used)?;
        py.detach(|| locked(&self.0).steps.reduce_and_vote(step));
        Ok(())
    }
}

fn used() -> PyErr {
    PyValueError::new_err("this step was already reduced")
}

/// A step whose gradients this worker computes.
#[pyclass(frozen)]
pub(crate) struct ComputeStep {
    open: Mutex<Option<OpenStep>>,
    shards: Vec<ShardSamples>,
}

#[pymethods]
impl ComputeStep {
    /// The number of the step.
    #[getter]
    fn step(&self) -> PyResult<u64> {
        let open = locked(&self.open);
        open.as_ref().map(|open| open.step().0).ok_or_else(used)
    }

    /// The shards of this worker, in order: the number of each, and the numbers of its samples.
    #[getter]
    fn shards(&self) -> Vec<(u32, Vec<u64>)> {
        let shards = self.shards.iter();
        shards
            .map(|shard| (shard.shard().0, shard.ids().to_vec()))
            .collect()
    }

    /// Adds the result of the next shard: gradient and loss, as sums over the `targets` targets that count.
    fn add(
        &self,
        py: Python<'_>,
        shard: u32,
        gradient: &Bound<'_, PyAny>,
        loss: f64,
        targets: u64,
    ) -> PyResult<()> {
        let view = View::of(gradient)?;
        #[expect(unsafe_code, reason = "memory of Python is read where it lies")]
        // SAFETY: the caller waits for this call.
        let values = unsafe { view.floats() }?;
        let samples = self
            .shards
            .iter()
            .find(|samples| samples.shard().0 == shard);
        let samples = samples.ok_or_else(|| {
            PyValueError::new_err(format!("shard {shard} is not one of this worker"))
        })?;
        py.detach(|| {
            let mut open = locked(&self.open);
            let open = open.as_mut().ok_or_else(used)?;
            let added = open.add_counted(samples, values, loss, targets);
            added.map_err(|error| failed(&error))
        })
    }
}

/// A gradient to apply: its step is final on all workers.
#[pyclass(frozen)]
pub(crate) struct StepUpdate(Update);

#[pymethods]
impl StepUpdate {
    /// The number of the step.
    #[getter]
    fn step(&self) -> u64 {
        self.0.committed.step.0
    }

    /// The mean loss over the targets of all workers.
    #[getter]
    fn loss(&self) -> f64 {
        self.0.committed.loss
    }

    /// The number of targets of all workers.
    #[getter]
    fn targets(&self) -> u64 {
        self.0.committed.targets
    }

    /// Copies the gradient, summed over the targets of all workers, to an array of float32 with as many elements.
    fn copy_gradient(&self, py: Python<'_>, to: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut view = View::writable(to)?;
        #[expect(unsafe_code, reason = "memory of Python is changed where it lies")]
        // SAFETY: the caller waits for this call.
        let values = unsafe { view.floats_mut() }?;
        let gradient = self.0.gradient();
        if values.len() != gradient.len() {
            return Err(PyValueError::new_err(format!(
                "the gradient has {} elements, and the array {}",
                gradient.len(),
                values.len()
            )));
        }
        py.detach(|| values.copy_from_slice(gradient));
        Ok(())
    }
}
