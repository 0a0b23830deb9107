//! Signal handlers: Ctrl-C, SIGTERM and SIGHUP as requests to stop, SIGUSR1 for flight records.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ronde_cluster::{StopFlag, StopLevel};
use ronde_protocol::JobMember;
use ronde_train::flight_records::FlightRecordWriter;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::console::message;
use super::exit;

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

/// Whether the command only shows something and has nothing to save.
static IS_DISPLAY: AtomicBool = AtomicBool::new(false);

/// Time in which a display ends after a signal. Then the process ends although it waits for a terminal that accepts no
/// output, or for a server.
const DISPLAY_END_MAX: Duration = Duration::from_millis(700);

/// Makes further signals set the stop flag instead of ending the process at once.
pub(crate) fn begin_supervision() {
    IS_SUPERVISING.store(true, Ordering::SeqCst);
}

/// Makes further signals set the stop flag, and end the process soon after the first one or at the second one.
pub(crate) fn begin_display() {
    IS_DISPLAY.store(true, Ordering::SeqCst);
    begin_supervision();
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
                let is_first = stop.signal() == 0;
                stop.request(signal);
                if IS_ALONE.load(Ordering::SeqCst) && stop.level() == StopLevel::KillNow {
                    end_now(128 + stop.signal());
                }
                match (IS_DISPLAY.load(Ordering::SeqCst), is_first) {
                    (true, true) => drop(std::thread::Builder::new().spawn(end_display)),
                    (true, false) => end_now(exit::DONE),
                    (false, _) => {}
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

/// Ends a display that has not ended by itself.
fn end_display() {
    ronde_clock::pause(DISPLAY_END_MAX);
    #[cfg(feature = "full")]
    ronde_dashboard::restore_input();
    end_now(exit::DONE);
}

#[expect(clippy::disallowed_methods, reason = "the command owns its process")]
pub(crate) fn end_now(code: i32) {
    std::process::exit(code);
}

/// Returns whether this process ignores a signal; false where the system does not report it.
pub(crate) fn is_ignored(signal: i32) -> bool {
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
