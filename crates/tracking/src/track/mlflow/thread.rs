//! [`MlflowThread`]: sends the spool of a run while it grows, on a separate thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::MlflowSender;
use super::sender::MlflowError;

/// The time between two looks at the spool.
const INTERVAL: Duration = Duration::from_secs(1);
/// The longest time between two attempts to reach a server that is away.
const AWAY_MAX: Duration = Duration::from_secs(30);
/// The longest time that [`MlflowThread::finish`] waits.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// Sends the spool of a run while it grows. A server that is away or slow never delays the run.
pub struct MlflowThread {
    /// Asks for a last attempt; the answer is on `ended`.
    finish: Mutex<Option<Sender<()>>>,
    ended: Mutex<Receiver<Result<u64, MlflowError>>>,
    /// Set when no thread waits for it any more.
    gives_up: Arc<AtomicBool>,
}

impl MlflowThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(sender: MlflowSender) -> std::io::Result<Self> {
        let (finish, requests) = channel();
        let (answer, ended) = channel();
        let gives_up = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&gives_up);
        thread::Builder::new()
            .name("ronde-mlflow".to_owned())
            .spawn(move || {
                let result = send_until(sender, &requests, &of_thread);
                // The run may have stopped waiting.
                let _ = answer.send(result);
            })?;
        Ok(Self {
            finish: Mutex::new(Some(finish)),
            ended: Mutex::new(ended),
            gives_up,
        })
    }

    /// Sends the rest, for at most ten seconds. Returns the number of bytes that wait in the spool.
    ///
    /// # Errors
    /// The server is away or refuses a request.
    pub fn finish(&self) -> Result<u64, MlflowError> {
        // Dropping the channel ends the thread after a last attempt.
        drop(
            self.finish
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let result = ended.recv_timeout(FINISH_MAX);
        self.gives_up.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|_| Err(MlflowError::Away("it is slow".to_owned())))
    }
}

/// Sends until the channel is closed and everything is sent, or the last attempt fails.
fn send_until(
    mut sender: MlflowSender,
    requests: &Receiver<()>,
    gives_up: &AtomicBool,
) -> Result<u64, MlflowError> {
    let mut pause = INTERVAL;
    loop {
        let is_last = matches!(
            requests.recv_timeout(pause),
            Err(RecvTimeoutError::Disconnected)
        );
        let sent = sender.send(&|| gives_up.load(Ordering::Relaxed));
        pause = match &sent {
            Ok(()) => INTERVAL,
            Err(_) => (pause * 2).min(AWAY_MAX),
        };
        if is_last {
            return sent.map(|()| sender.waiting());
        }
    }
}
