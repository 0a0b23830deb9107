//! [`stored_results`]: the address to which the results of a run are sent.

use std::path::Path;

use ronde_train::RunConfig;
use ronde_train::results::StoredResults;

use crate::environment;

/// Opens the address to which the results of a run are sent, if it names one, and checks it as the folder of the run: a new
/// run does not replace the model of an earlier one. Events of an earlier attempt are copied to the folder.
///
/// # Errors
/// A message with a help line.
pub fn stored_results(
    config: &RunConfig,
    folder: &Path,
    resumes: bool,
    overwrites: bool,
) -> Result<Option<StoredResults>, String> {
    let Some(address) = config.run.output_address() else {
        return Ok(None);
    };
    let failed = |error: ronde_store::StoreError| {
        format!(
            "cannot use `run.output`: {error}\n  help: correct the address or the credentials, or set a folder"
        )
    };
    let stored = StoredResults::open(&address, &environment::store_settings()).map_err(failed)?;
    if resumes {
        stored.restore_events(folder).map_err(failed)?;
    } else if overwrites {
        stored.remove().map_err(failed)?;
    } else if stored.has_model().map_err(failed)? {
        return Err(format!(
            "cannot start the run: {address} has the results of a finished run\n  \
             help: replace them with `--overwrite`, or choose another address with `--set run.output=ADDRESS`"
        ));
    }
    Ok(Some(stored))
}
