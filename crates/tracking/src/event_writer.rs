//! [`EventWriter`]: a destination of events that may block, used by one thread.

use ronde_core::Event;

/// A destination of events with their Unix times in seconds. [`BackgroundWriter`](crate::BackgroundWriter) calls it on a
/// thread, so it may block.
pub trait EventWriter: Send {
    /// Begins the output.
    ///
    /// # Errors
    /// The output cannot be written. Until [`EventWriter::resume`] has succeeded, only that and [`EventWriter::skip`] are called
    /// then.
    fn start(&mut self) -> std::io::Result<()>;

    /// Writes one event.
    ///
    /// # Errors
    /// As [`EventWriter::start`].
    fn write(&mut self, t: f64, event: &Event) -> std::io::Result<()>;

    /// Writes everything that is buffered. Called whenever no event waits.
    ///
    /// # Errors
    /// As [`EventWriter::start`].
    fn flush(&mut self) -> std::io::Result<()>;

    /// Notes an event that is not written because an earlier write has failed.
    fn skip(&mut self, t: f64, event: &Event) {
        let _ = (t, event);
    }

    /// Continues the output after a write has failed: accepted events are written, and later ones follow. Called every two
    /// seconds until it succeeds. By default an output does not continue.
    ///
    /// # Errors
    /// The output still cannot be written.
    fn resume(&mut self, t: f64) -> std::io::Result<()> {
        let _ = t;
        Err(std::io::ErrorKind::Unsupported.into())
    }
}
