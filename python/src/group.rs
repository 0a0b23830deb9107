//! [`Group`]: a process group as a Python object.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use ronde::comm::{GroupConfig, ProcessGroup, TransportChoice, bind};
use ronde::core::{Buffer, CollectiveError, Collectives, GroupRank, Operation, ReduceOp};

use crate::memory::View;

/// How often the main thread checks for signals while it waits.
const LOOK: Duration = Duration::from_millis(50);
/// How long memory of a failed operation is waited for. Progress threads release it as they fail.
const BACK_MAX: Duration = Duration::from_secs(10);

fn failed(error: CollectiveError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// A listening port; `address` is sent to the other ranks.
#[pyclass(frozen)]
pub(crate) struct Listener {
    listener: Mutex<Option<TcpListener>>,
    address: SocketAddr,
}

#[pymethods]
impl Listener {
    /// Listens on a free port of an address of this host.
    #[new]
    #[pyo3(signature = (host = "127.0.0.1"))]
    fn new(host: &str) -> PyResult<Self> {
        let host: IpAddr = host
            .parse()
            .map_err(|error| PyValueError::new_err(format!("{host}: {error}")))?;
        let (listener, address) = bind(host).map_err(failed)?;
        let listener = Mutex::new(Some(listener));
        Ok(Self { listener, address })
    }

    /// `host:port`.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }
}

/// Connected ranks.
#[pyclass(frozen)]
pub(crate) struct Group(Mutex<Option<Arc<ProcessGroup>>>);

#[pymethods]
impl Group {
    /// Joins the group whose ranks listen at `peers`, this one at `listener`. `transport` is `auto`,
    /// `shared_memory` or `tcp`.
    #[staticmethod]
    #[pyo3(signature = (rank, peers, listener, transport = "auto", timeout_s = 60.0))]
    fn connect(
        py: Python<'_>,
        rank: u32,
        peers: Vec<String>,
        listener: &Listener,
        transport: &str,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let wrong = |what: &dyn std::fmt::Display| PyValueError::new_err(what.to_string());
        let peers: Vec<SocketAddr> = peers
            .iter()
            .map(|at| at.parse().map_err(|error| wrong(&format!("{at}: {error}"))))
            .collect::<PyResult<_>>()?;
        let taken = listener.listener.lock();
        let taken = taken.unwrap_or_else(PoisonError::into_inner).take();
        let listening = taken.ok_or_else(|| wrong(&"this listener is used by another group"))?;
        let mut config = GroupConfig::new("python", "python", GroupRank(rank));
        config.timeout = Duration::try_from_secs_f64(timeout_s).map_err(|error| wrong(&error))?;
        config.transport = match transport {
            "auto" => TransportChoice::Auto,
            "shared_memory" => TransportChoice::SharedMemory,
            "tcp" => TransportChoice::Tcp,
            other => return Err(wrong(&format!("invalid transport `{other}`"))),
        };
        let group = py.detach(move || ProcessGroup::connect(config, listening, &peers));
        Ok(Self(Mutex::new(Some(Arc::new(group.map_err(failed)?)))))
    }

    /// This process's rank.
    #[getter]
    fn rank(&self) -> PyResult<u32> {
        Ok(self.group()?.rank().0)
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.group()?.size())
    }

    /// Whether the ranks share memory.
    #[getter]
    fn shares_memory(&self) -> PyResult<bool> {
        Ok(self.group()?.shares_memory())
    }

    /// Reduces a writable contiguous array, or a tensor that has a `numpy()` view, over all ranks in
    /// place. `op` is a name such as `sum`, `mean`, `min`, `max`. Other Python threads run meanwhile; a
    /// KeyboardInterrupt aborts the operation on all ranks.
    #[pyo3(signature = (array, op = "sum"))]
    fn all_reduce(&self, array: &Bound<'_, PyAny>, op: &str) -> PyResult<()> {
        let group = self.group()?;
        let mut ops = ReduceOp::ALL.into_iter();
        let op = ops
            .find(|known| known.to_string() == op)
            .ok_or_else(|| PyValueError::new_err(format!("invalid operator `{op}`")))?;
        let view = match array.hasattr("__array_interface__")? || !array.hasattr("numpy")? {
            true => View::writable(array)?,
            false => View::writable(&array.call_method0("numpy")?)?,
        };
        all_reduce_view(&group, array.py(), view, op)
    }

    /// Ends every wait on all ranks.
    fn abort(&self, reason: &str) -> PyResult<()> {
        self.group()?.abort(reason);
        Ok(())
    }

    /// Leaves the group. Operations of other threads end first.
    fn close(&self, py: Python<'_>) {
        let group = self.lock().take();
        py.detach(|| drop(group));
    }
}

impl Group {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<ProcessGroup>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn group(&self) -> PyResult<Arc<ProcessGroup>> {
        let group = self.lock().clone();
        group.ok_or_else(|| PyRuntimeError::new_err("the group is closed"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let group = self.lock().take();
        // Leaving notifies the peers and may wait: without the interpreter's lock, unless Python is exiting.
        let left = Python::try_attach(|py| py.detach(|| drop(group.clone())));
        drop((left, group));
    }
}

/// Reduces a view where it lies.
fn all_reduce_view(
    group: &ProcessGroup,
    py: Python<'_>,
    mut view: View,
    op: ReduceOp,
) -> PyResult<()> {
    #[expect(unsafe_code, reason = "lending instead of copying")]
    // SAFETY: this function does not return before the loan has ended, or else keeps the view for ever. That no other thread of
    // the program uses the array meanwhile is the caller's part, as with every function of numpy that gives up the lock.
    let (buffer, loan) = unsafe { view.lend() };
    let operation = Operation::AllReduce(op);
    let outcome = interruptible(py, group, operation, buffer).map(|result| {
        view.fill(&result);
    });
    let is_back = py.detach(move || loan.ended_within(BACK_MAX));
    if !is_back {
        // It must not be freed while another thread may write to it.
        std::mem::forget(view);
    }
    outcome
}

/// Runs an operation without the interpreter's lock. On the main thread, where Python handles
/// signals, it checks for them meanwhile.
fn interruptible(
    py: Python<'_>,
    group: &ProcessGroup,
    operation: Operation,
    buffer: Buffer,
) -> PyResult<Buffer> {
    let threading = py.import("threading")?;
    let is_main = threading
        .call_method0("current_thread")?
        .is(&threading.call_method0("main_thread")?);
    if !is_main {
        let outcome = py.detach(|| group.start_and_wait(operation, buffer));
        return outcome.map_err(failed);
    }
    py.detach(|| {
        thread::scope(|scope| {
            let (done, finished) = mpsc::channel();
            scope.spawn(move || {
                // The receiver waits for it.
                let _heard = done.send(group.start_and_wait(operation, buffer));
            });
            let mut interrupt = None;
            loop {
                match finished.recv_timeout(LOOK) {
                    Ok(outcome) => return interrupt.map_or_else(|| outcome.map_err(failed), Err),
                    Err(_) if interrupt.is_none() => {
                        if let Err(signal) = Python::attach(|py| py.check_signals()) {
                            group.abort("interrupted by a signal");
                            interrupt = Some(signal);
                        }
                    }
                    Err(_) => {}
                }
            }
        })
    })
}
