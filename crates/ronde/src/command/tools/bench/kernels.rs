//! `ronde bench kernels`: measures the kernels of a model, compared with the rates of this machine.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ronde::engine::{
    Activation, Chain, Device, EngineError, ForwardContext, KernelCall, KernelObserver, Mode,
    ObservedDevice,
};
use ronde_bench::{KernelReport, KernelRow, MachineRates, TrainingCase};
use ronde_cluster::StopFlag;
use ronde_core::layout::{Arena, TensorEntry};
use ronde_core::{Shard, Step};
use ronde_data::DatasetExt;

use super::arguments::BenchKernelsArguments;
use super::run_file::RunFileText;
use super::{exit, print, refuse};
use crate::command::console::message;
use ronde_engine::LayerExt;

/// The value of all gradients of the output.
const OUTPUT_GRADIENT: f32 = 1e-3;

pub(super) fn bench(arguments: &BenchKernelsArguments, stop: &StopFlag) -> i32 {
    let report = match run(arguments, stop) {
        Ok(report) => report,
        Err(_) if stop.signal() != 0 => return 128 + stop.signal(),
        Err(message) => {
            message!("{message}");
            return exit::USER_ERROR;
        }
    };
    let code = print(&report.table(), stop);
    let Some(path) = &arguments.json else {
        return code;
    };
    let written = report.to_json();
    match written.and_then(|text| ronde_bench::write(path, &text)) {
        Ok(()) => {
            message!("wrote {}", path.display());
            code
        }
        Err(error) => refuse(&error),
    }
}

fn run(arguments: &BenchKernelsArguments, stop: &StopFlag) -> Result<KernelReport, String> {
    let failed = |error: EngineError| format!("error: {error}");
    let observer = Arc::new(KernelTimes::default());
    let mut model = MeasuredModel::open(arguments, observer.clone())?;
    let mut report = KernelReport {
        model: model.name.clone(),
        samples: model.input.samples(),
        step_seconds: Vec::new(),
        threads: model.threads,
        machine: MachineRates::measure(model.threads),
        rows: Vec::new(),
    };
    // The first step allocates the memory that the next ones reuse.
    for step in 0..=arguments.steps {
        if stop.signal() != 0 {
            return Err("error: stopped by a signal".to_owned());
        }
        let seconds = model.step(arguments.forward).map_err(failed)?;
        let calls = observer.take();
        if step > 0 {
            report.step_seconds.push(seconds);
            calls.into_iter().for_each(|call| report.add(call));
        }
    }
    Ok(report)
}

/// A model with a micro-batch of samples.
struct MeasuredModel {
    name: String,
    threads: usize,
    chain: Chain,
    context: ForwardContext,
    input: Activation,
    arena: Arena,
    gradients: Vec<f32>,
}

impl MeasuredModel {
    /// Builds the model on an observed device, and reads the samples of its first logical shard.
    fn open(
        arguments: &BenchKernelsArguments,
        observer: Arc<dyn KernelObserver>,
    ) -> Result<Self, String> {
        let file = match &arguments.file {
            Some(file) => RunFileText::read(Some(file))?,
            None => {
                let case = TrainingCase::of(&arguments.model).map_err(|e| format!("error: {e}"))?;
                RunFileText {
                    text: case.run_file(1, 1, 1, None),
                    name: case.model.to_owned(),
                    base: ".".into(),
                }
            }
        };
        let (plan, split) = file.open(&arguments.sets, false)?;
        let description = split.train.description();
        let samples = plan
            .shards
            .samples(Shard(0), plan.config.train.global_batch_size);
        let numbers: Vec<u64> = samples.map(|n| n % split.train.len()).collect();
        let features = split.train.features(&numbers);
        let features = features.map_err(|error| format!("error: {error}"))?;
        // Bad records may be skipped.
        let elements: usize = description.shape.iter().product();
        let samples = features.len() / elements.max(1);
        if samples == 0 {
            return Err(format!(
                "error: cannot measure kernels: no sample of the first shard of {} can be read",
                file.name
            ));
        }
        let shape = [&[samples], &description.shape[..]].concat();
        let built =
            plan.config
                .model
                .config
                .build(&description.shape, description.classes, &plan.seeds);
        let prepared = built.and_then(|chain| plan.prepare(chain));
        let mut chain = prepared.map_err(|error| format!("error: {error}"))?;
        let (threads, train) = (plan.config.workers.threads as usize, &plan.config.train);
        let host = train.engine.device(threads, train.products);
        let host = host.map_err(|error| format!("error: {error}"))?;
        let device: Arc<dyn Device> = Arc::new(ObservedDevice::new(host, observer));
        chain.set_device(&device);
        let arena = Arena::new(chain.layout().tensors.iter().map(TensorEntry::elements));
        let mut state = vec![0.0; arena.len()];
        chain.save_state(&mut state, arena.ranges());
        chain.load_shared(
            &(Arc::new(state) as ronde_engine::SharedState),
            arena.ranges(),
        );
        Ok(Self {
            name: file.name,
            threads,
            context: ForwardContext {
                seeds: plan.seeds,
                step: Step(0),
                shard: Shard(0),
                layer: 0,
                mode: Mode::Train,
            },
            input: Activation::from_host(&shape, features),
            gradients: vec![0.0; arena.len()],
            chain,
            arena,
        })
    }

    /// Runs forward, and backward unless `forward_only`; returns the time in seconds.
    fn step(&mut self, forward_only: bool) -> Result<f64, EngineError> {
        let input = self.input.clone();
        let start = ronde_clock::now();
        if forward_only {
            self.chain.evaluate(input)?;
            return Ok(start.elapsed().as_secs_f64());
        }
        let output = self.chain.forward_shard(input, &self.context)?;
        // The gradient replaces the output, as that of a loss does.
        let mut gradient = output.on_host();
        match gradient.host_mut() {
            Some(values) => values.fill(OUTPUT_GRADIENT),
            None => {
                let values = vec![OUTPUT_GRADIENT; gradient.elements()];
                gradient = Activation::from_host(gradient.shape(), values);
            }
        }
        self.chain.backward_shard(
            self.context.shard,
            gradient,
            &mut self.gradients,
            self.arena.ranges(),
            false,
        )?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Measures each kernel.
#[derive(Default)]
struct KernelTimes(Mutex<KernelTimesState>);

#[derive(Default)]
struct KernelTimesState {
    begun: Option<Instant>,
    calls: Vec<KernelRow>,
}

impl KernelTimes {
    /// Returns the calls since the last time.
    fn take(&self) -> Vec<KernelRow> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.calls)
    }
}

impl KernelObserver for KernelTimes {
    fn begin(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.begun = Some(ronde_clock::now());
    }

    fn end(&self, call: KernelCall) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = state
            .begun
            .take()
            .map_or(0.0, |begun| begun.elapsed().as_secs_f64());
        state.calls.push(KernelRow {
            kernel: call.kernel.to_owned(),
            shape: call.work.shape,
            calls: 1,
            seconds,
            multiply_adds: call.work.multiply_adds,
            floats: call.work.floats,
        });
    }
}
