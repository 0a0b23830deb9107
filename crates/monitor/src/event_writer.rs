//! [`EventWriter`]: a destination of events that may block, used by one thread.

use ronde_core::Event;

/// A destination of events with their Unix times in seconds. [`BackgroundWriter`](crate::BackgroundWriter) calls it on a
/// thread, so it may block.
pub trait EventWriter: Send {
    /// Begins the output.
    ///
    /// # Errors
    /// The output cannot be written. Nothing more is called then.
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
}
