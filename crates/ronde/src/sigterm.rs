//! [`SigtermGuard`]: graceful end on SIGTERM while a user's program trains.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ronde_protocol::{JobMember, MembershipPolicy};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::{Handle, Signals};

/// While this value exists, SIGTERM requests a graceful end; before and after, it has its default effect.
pub(crate) struct SigtermGuard {
    /// Set when the run has to end after the current step.
    pub(crate) stop: Arc<AtomicBool>,
    is_idle: Arc<AtomicBool>,
    listening: Option<(Handle, JoinHandle<()>)>,
}

impl SigtermGuard {
    /// Installs the handler. In an elastic job SIGTERM makes this worker leave after its step; otherwise the
    /// whole run ends after the step. Nothing changes when the system refuses the handler.
    pub(crate) fn listen(member: Arc<dyn JobMember>, policy: MembershipPolicy) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let is_idle = Arc::new(AtomicBool::new(false));
        let requested = Arc::clone(&stop);
        let listening = default_while(&is_idle)
            .and_then(|()| Signals::new([SIGTERM]))
            .and_then(|mut signals| {
                let handle = signals.handle();
                let thread = std::thread::Builder::new().name("signals".to_owned());
                let thread = thread.spawn(move || {
                    for _signal in signals.forever() {
                        match policy {
                            MembershipPolicy::Elastic => member.drain(),
                            MembershipPolicy::Fixed => requested.store(true, Ordering::Relaxed),
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

/// Makes SIGTERM end the process, as without a handler, while the flag is set.
fn default_while(is_idle: &Arc<AtomicBool>) -> std::io::Result<()> {
    signal_hook::flag::register_conditional_default(SIGTERM, Arc::clone(is_idle)).map(drop)
}

impl Drop for SigtermGuard {
    fn drop(&mut self) {
        self.is_idle.store(true, Ordering::SeqCst);
        if let Some((handle, thread)) = self.listening.take() {
            handle.close();
            // The thread ends when its handle is closed.
            let _ = thread.join();
        }
    }
}
