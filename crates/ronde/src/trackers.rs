//! [`RunTrackers`]: the trackers of a run that `[track]` of its run file names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_core::Tracker;
use ronde_tracking::track::{
    CsvFiles, EverySteps, MlflowSpool, MlflowThread, PrometheusEndpoint, RunDescription,
    RunMetrics, TensorboardFiles,
};
use ronde_tracking::{BackgroundWriter, RunView};
use ronde_train::RunConfig;

/// Receives a message about a file of a run that cannot be written, or can be written again, while the run is under way.
pub type ProblemReport = Arc<dyn Fn(&str) + Send + Sync>;

/// The trackers of a run: TensorBoard, CSV, Prometheus and MLflow. They receive the events of all workers in one process.
pub struct RunTrackers {
    trackers: Vec<Arc<dyn Tracker>>,
    writers: Vec<Arc<BackgroundWriter>>,
    notices: Vec<String>,
    mlflow: Option<MlflowThread>,
    folder: PathBuf,
}

impl RunTrackers {
    /// Opens the trackers of a run with the folder `output`. `earlier` is the state of a run that resumes; such a run
    /// continues the files of its earlier attempts. `report` receives problems of the files.
    ///
    /// # Errors
    /// A message with a help line: the address for Prometheus cannot be used.
    pub fn open(
        config: &RunConfig,
        output: &Path,
        earlier: Option<&RunView>,
        report: &ProblemReport,
    ) -> Result<Self, String> {
        let section = &config.track;
        let resumes = earlier.is_some();
        let mut all = Self {
            trackers: Vec::new(),
            writers: Vec::new(),
            notices: Vec::new(),
            mlflow: None,
            folder: output.to_owned(),
        };
        if let Some(address) = section.prometheus_address() {
            let metrics = earlier.map_or_else(RunMetrics::default, |view| {
                RunMetrics::resumed(view.clone())
            });
            let endpoint = PrometheusEndpoint::listen(address, metrics).map_err(|error| {
                format!(
                    "cannot listen at {address} for Prometheus: {error}\n  \
                     help: choose another address: --set track.prometheus=127.0.0.1:0 chooses a free port"
                )
            })?;
            let url = format!("http://{}/metrics", endpoint.address());
            let is_public = !endpoint.address().ip().is_loopback();
            let exposure = match is_public {
                true => ", readable by other hosts without a password",
                false => "",
            };
            all.notices
                .push(format!("metrics for Prometheus: {url}{exposure}"));
            all.trackers.push(Arc::new(endpoint));
        }
        if let Some(folder) = section.tensorboard.folder(&config.run.name, output) {
            let host = rustix::system::uname();
            let host = host.nodename().to_string_lossy().into_owned();
            let files = TensorboardFiles::new(&folder, description(config), &host, resumes);
            let writer = BackgroundWriter::start("TensorBoard events", Box::new(files));
            all.add(section.every_steps, writer, report);
        }
        if section.csv {
            let files = CsvFiles::new(output, resumes);
            let writer = BackgroundWriter::start("metrics in CSV", Box::new(files));
            all.add(section.every_steps, writer, report);
        }
        if let Some(address) = &section.mlflow {
            if !resumes {
                let cleared = MlflowSpool::clear(output);
                cleared.map_err(|error| format!("cannot remove the spool for MLflow: {error}"))?;
            }
            let sender = crate::mlflow::open_sender(output, address, section.mlflow_experiment())?;
            let spool = MlflowSpool::new(output, description(config));
            let writer = BackgroundWriter::start("the spool for MLflow", Box::new(spool));
            all.add(section.every_steps, writer, report);
            let thread = MlflowThread::start(sender);
            all.mlflow = Some(thread.map_err(|error| format!("cannot start a thread: {error}"))?);
        }
        Ok(all)
    }

    /// Adds a tracker that writes on a separate thread.
    fn add(&mut self, every_steps: u64, writer: BackgroundWriter, report: &ProblemReport) {
        let report = Arc::clone(report);
        let writer = Arc::new(writer.reporting(move |problem| report(problem)));
        let sampled = EverySteps::new(every_steps, writer.clone());
        self.trackers.push(Arc::new(sampled));
        self.writers.push(writer);
    }

    /// Returns the trackers, which receive every event of the run.
    #[must_use]
    pub fn trackers(&self) -> &[Arc<dyn Tracker>] {
        &self.trackers
    }

    /// Returns lines for the user about the trackers, such as the address for Prometheus.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Waits up to five seconds per tracker, and ten for MLflow, until everything is written. Returns the unwritten events.
    #[must_use]
    pub fn finish(&self) -> Vec<String> {
        let finished = self.writers.iter().filter_map(|writer| {
            writer.finish();
            writer.problem()
        });
        let mut problems: Vec<String> = finished.collect();
        let sent = self.mlflow.as_ref().map(MlflowThread::finish);
        if let Some(Err(error)) = sent {
            problems.push(format!(
                "{error}; what was not sent is in the folder of the run: send it with `ronde track {}`",
                self.folder.display()
            ));
        }
        problems
    }
}

/// Returns the data of the trackers besides the events of a run.
fn description(config: &RunConfig) -> RunDescription {
    // Neither fails for a run that was read from a file.
    RunDescription {
        name: config.run.name.clone(),
        run_file: config.to_toml().unwrap_or_default(),
        parameters: config.identity_parts().unwrap_or_default(),
    }
}
