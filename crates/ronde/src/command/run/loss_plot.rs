//! [`LossPlot`]: draws the loss of a run at its end, for `--plot`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_core::Tracker;
use ronde_tracking::{LossCurve, LossRecorder, Verbosity, plot, terminal_columns};

use crate::command::console::{console, message};
use crate::command::run::run_folder::EVENT_FILE;

/// The name of the drawing in the folder of a run.
const PLOT_FILE: &str = "loss.svg";
/// The columns of a drawing where standard error is not a terminal.
const COLUMNS: usize = 80;

/// Records the loss of a run and draws it at the end: in the terminal and as `loss.svg`.
pub(crate) struct LossPlot {
    recorder: Arc<LossRecorder>,
    file: PathBuf,
    /// Whether it is drawn in the terminal.
    shows: bool,
}

impl LossPlot {
    /// Begins with the earlier attempts of a run that resumes. `shows` is whether it is drawn in the terminal.
    pub(crate) fn new(folder: &Path, resumes: bool, shows: bool) -> Self {
        let earlier = match resumes {
            // Without the earlier attempts the curve begins at the checkpoint.
            true => LossCurve::read(&folder.join(EVENT_FILE)).unwrap_or_default(),
            false => LossCurve::default(),
        };
        Self {
            recorder: Arc::new(LossRecorder::new(earlier)),
            file: folder.join(PLOT_FILE),
            shows: shows && console().verbosity > Verbosity::Quiet,
        }
    }

    pub(crate) fn tracker(&self) -> Arc<dyn Tracker> {
        self.recorder.clone()
    }

    /// Draws the loss. Prints a warning if the file cannot be written.
    pub(crate) fn finish(&self) {
        let curve = self.recorder.curve();
        if self.shows {
            let characters = match ronde::environment::terminal_is_dumb() {
                true => plot::Characters::Ascii,
                false => plot::Characters::Braille,
            };
            let columns = terminal_columns().unwrap_or(COLUMNS);
            if let Some(text) = plot::text(&curve, columns, characters) {
                message!("\n{text}");
            }
        }
        let Some(svg) = plot::svg(&curve) else {
            return;
        };
        if let Err(error) = self.write(&svg) {
            message!("warning: cannot write {}: {error}", self.file.display());
        }
    }

    /// Writes the file, which replaces an earlier one once it is complete.
    fn write(&self, svg: &str) -> std::io::Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(folder)?;
        file.write_all(svg.as_bytes())?;
        file.persist(&self.file)?;
        Ok(())
    }
}
