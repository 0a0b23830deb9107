//! [`Ending`]: SIGTERM while a program of the user's own trains: the job ends in good order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ronde_core::Membership;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::{Handle, Signals};

/// For as long as this lives SIGTERM asks for a good end; before and after it does what it did.
pub(crate) struct Ending {
    /// Set when the run has to end after a step.
    pub(crate) stop: Arc<AtomicBool>,
    is_idle: Arc<AtomicBool>,
    listening: Option<(Handle, JoinHandle<()>)>,
}

impl Ending {
    /// Listens from now on. In a job that goes on without this worker SIGTERM lets it leave after its step;
    /// elsewhere the whole run ends after the step. Where the system takes no handler nothing is changed.
    pub(crate) fn listen(membership: Option<Arc<dyn Membership>>) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let is_idle = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let listening = default_while(&is_idle)
            .and_then(|()| Signals::new([SIGTERM]))
            .and_then(|mut signals| {
                let handle = signals.handle();
                let thread = std::thread::Builder::new().name("signals".to_owned());
                let thread = thread.spawn(move || {
                    for _signal in signals.forever() {
                        match &membership {
                            Some(membership) => membership.drain(),
                            None => asked.store(true, Ordering::Relaxed),
                        }
                    }
                })?;
                Ok((handle, thread))
            })
            .ok();
        if listening.is_none() {
            is_idle.store(true, Ordering::SeqCst);
        }
        Self {
            stop,
            is_idle,
            listening,
        }
    }
}

/// While the flag is set SIGTERM ends the process, as without a handler.
fn default_while(is_idle: &Arc<AtomicBool>) -> std::io::Result<()> {
    signal_hook::flag::register_conditional_default(SIGTERM, Arc::clone(is_idle)).map(drop)
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.is_idle.store(true, Ordering::SeqCst);
        if let Some((handle, thread)) = self.listening.take() {
            handle.close();
            // It ends with its handle.
            let _ = thread.join();
        }
    }
}
