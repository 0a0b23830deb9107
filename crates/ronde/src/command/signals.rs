//! Ctrl-C and SIGTERM as requests to stop.

use ronde_cluster::StopFlag;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

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
