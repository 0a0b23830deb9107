//! Signal handlers: Ctrl-C, SIGTERM and SIGHUP as requests to stop, SIGUSR1 for flight records.

use crate::command::console::message;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ronde_cluster::{StopFlag, StopLevel};
use ronde_core::JobMember;
use ronde_train::flight_records::FlightRecordWriter;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// Makes SIGTERM request that this worker leaves its job after its step.
///
/// # Errors
/// The system refuses the handler.
pub(crate) fn drain_on_request(member: Arc<dyn JobMember>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM])?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for _signal in signals.forever() {
                member.drain();
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

/// Makes SIGTERM, Ctrl-C and SIGHUP request the end of the run after the current step. No supervisor ends this process, so that
/// it ends itself at once when the [`StopFlag`] of [`forward`] requires it.
///
/// # Errors
/// The system refuses a handler.
pub(crate) fn stop_member_on_request(stop: &Arc<AtomicBool>) -> std::io::Result<()> {
    IS_ALONE.store(true, Ordering::SeqCst);
    for signal in handled() {
        signal_hook::flag::register(signal, Arc::clone(stop))?;
    }
    Ok(())
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
                    Ok(Some(path)) => message!("flight record: {}", path.display()),
                    Ok(None) => message!("flight record: no group yet"),
                    Err(error) => message!("flight record: cannot write it: {error}"),
                }
            }
        })?;
    Ok(())
}

/// Whether the command reacts to stop requests. Before that, signals end the process at once: reading a run file or
/// opening a data set cannot be interrupted in any other way.
static IS_SUPERVISING: AtomicBool = AtomicBool::new(false);

/// Whether this process is a worker without a supervisor.
static IS_ALONE: AtomicBool = AtomicBool::new(false);

/// Makes further signals set the stop flag instead of ending the process at once.
pub(crate) fn begin_supervision() {
    IS_SUPERVISING.store(true, Ordering::SeqCst);
}

/// Handles SIGINT, SIGTERM and SIGHUP: they end the process at once, or set `stop` after [`begin_supervision`]. A SIGHUP
/// that was ignored when the process started, as by `nohup`, stays ignored.
///
/// # Errors
/// The system refuses the handler.
pub(crate) fn forward(stop: &StopFlag) -> std::io::Result<()> {
    let mut signals = Signals::new(handled())?;
    let stop = stop.clone();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                if !IS_SUPERVISING.load(Ordering::SeqCst) {
                    message!("interrupted before anything was started");
                    end_now(128 + signal);
                }
                stop.request(signal);
                if IS_ALONE.load(Ordering::SeqCst) && stop.level() == StopLevel::KillNow {
                    end_now(128 + stop.signal());
                }
            }
        })?;
    Ok(())
}

/// Returns the signals that request an end. A SIGHUP that this process ignores, as under `nohup`, is none.
fn handled() -> Vec<i32> {
    let all = [SIGINT, SIGTERM, SIGHUP].into_iter();
    all.filter(|signal| *signal != SIGHUP || !is_ignored(SIGHUP))
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "the command owns its process")]
fn end_now(code: i32) {
    std::process::exit(code);
}

/// Returns whether this process ignores a signal; false where the system does not report it.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_mask(&status).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Returns the mask of ignored signals from the text of `/proc/self/status`.
fn ignored_mask(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(line?.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_parsed() {
        let status = "Name:\tronde\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored_mask(status), Some(0x1001));
        assert_eq!(ignored_mask("Name: x\n"), None);
    }
}
