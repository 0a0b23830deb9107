//! Ctrl-C and SIGTERM as requests to stop.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ronde_cluster::StopFlag;
use ronde_core::Membership;
use ronde_train::flights::Flights;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// From now on SIGTERM makes this worker leave its job in good order instead of ending it.
///
/// # Errors
/// The system does not take the handler.
pub(crate) fn drain_on_request(membership: Arc<dyn Membership>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM])?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for _signal in signals.forever() {
                membership.drain();
            }
        })?;
    Ok(())
}

/// From now on SIGTERM asks for the end of the run after a step instead of ending this worker.
///
/// # Errors
/// The system does not take the handler.
pub(crate) fn stop_on_request(stop: Arc<AtomicBool>) -> std::io::Result<()> {
    signal_hook::flag::register(SIGTERM, stop).map(|_| ())
}

/// From now on SIGUSR1 makes this worker write down what its group has been doing; it goes on.
///
/// # Errors
/// The system does not take the handler.
pub(crate) fn record_on_request(flights: Arc<Flights>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGUSR1])?;
    std::thread::Builder::new()
        .name("flight".to_owned())
        .spawn(move || {
            for _signal in signals.forever() {
                match flights.write() {
                    Ok(Some(path)) => eprintln!("flight record: {}", path.display()),
                    Ok(None) => eprintln!("flight record: no group yet"),
                    Err(error) => eprintln!("flight record: cannot be written: {error}"),
                }
            }
        })?;
    Ok(())
}

/// From now on signals raise `stop` instead of ending the process.
///
/// # Errors
/// The system does not take the handler.
pub(crate) fn forward(stop: &StopFlag) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let stop = stop.clone();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                stop.request(signal);
            }
        })?;
    Ok(())
}
