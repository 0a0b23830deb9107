//! [`print_lines`]: the runs of a folder as lines.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};

use ronde_tracking::render;

use crate::error::DashboardError;
use crate::library::{RunLibrary, RunSummary};
use crate::settings::masked;

/// Looks at the runs between two lines of a run.
const LOOKS_PER_LINE: u32 = 4;

/// Returns a run as a line.
pub(super) fn line(run: &RunSummary) -> String {
    let mut line = format!("{}: {}", run.id, run.phase);
    let mut add = |text: String| {
        line.push_str(", ");
        line.push_str(&text);
    };
    if run.steps > 0 {
        add(format!(
            "step {} of {}",
            render::count(run.step),
            render::count(run.steps)
        ));
    }
    if let Some(loss) = run.loss {
        add(format!("loss {}", render::number(loss)));
    }
    if let Some(rate) = run.rate {
        add(format!("{} {}/s", render::count(rate as u64), run.unit));
    }
    if let Some(left) = run.left_s {
        add(format!("{} left", render::duration(left)));
    }
    if let Some((trouble, help)) = run.trouble() {
        add(masked(trouble));
        if let Some(help) = help {
            line.push_str(&format!("; help: {}", masked(help)));
        }
    }
    line
}

/// Prints a line for each run, and then one every two seconds for each run that has changed, until no run is under way or
/// `is_stopping` returns true.
///
/// # Errors
/// [`DashboardError::Terminal`] if a line cannot be written; a closed pipe ends the output without an error.
pub fn print_lines(
    library: &RunLibrary,
    output: &mut dyn Write,
    is_stopping: &dyn Fn() -> bool,
) -> Result<(), DashboardError> {
    let mut printed: BTreeMap<String, u64> = BTreeMap::new();
    loop {
        let (_, runs, _) = library.summaries();
        for run in runs.iter().rev() {
            if printed.insert(run.id.clone(), run.version) == Some(run.version) {
                continue;
            }
            match writeln!(output, "{}", line(run)).and_then(|()| output.flush()) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                Err(cause) => return Err(DashboardError::Terminal { cause }),
                Ok(()) => {}
            }
        }
        if !runs.iter().any(|run| run.phase == "running") {
            return Ok(());
        }
        for _ in 0..LOOKS_PER_LINE {
            if is_stopping() {
                return Ok(());
            }
            ronde_clock::pause(crate::library::POLL);
        }
    }
}
