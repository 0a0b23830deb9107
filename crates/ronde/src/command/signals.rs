//! Signal handlers: Ctrl-C, SIGTERM and SIGHUP as requests to stop, SIGUSR1 for flight records.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ronde_cluster::StopFlag;
use ronde_core::Membership;
use ronde_train::flight_records::FlightRecordWriter;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// Makes SIGTERM request that this worker leaves its job after its step.
///
/// # Errors
/// The system refuses the handler.
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

/// Makes SIGTERM request the end of the run after the current step.
///
/// # Errors
/// The system refuses the handler.
pub(crate) fn stop_on_request(stop: Arc<AtomicBool>) -> std::io::Result<()> {
    signal_hook::flag::register(SIGTERM, stop).map(|_| ())
}

/// Makes this worker write its flight record on SIGUSR1 and continue.
///
/// # Errors
/// The system refuses the handler.
pub(crate) fn record_on_request(flights: Arc<FlightRecordWriter>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGUSR1])?;
    std::thread::Builder::new()
        .name("flight".to_owned())
        .spawn(move || {
            for _signal in signals.forever() {
                match flights.write() {
                    Ok(Some(path)) => eprintln!("flight record: {}", path.display()),
                    Ok(None) => eprintln!("flight record: no group yet"),
                    Err(error) => eprintln!("flight record: cannot write it: {error}"),
                }
            }
        })?;
    Ok(())
}

/// Makes the signals set `stop` instead of ending the process.
///
/// # Errors
/// The system refuses the handler.
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
