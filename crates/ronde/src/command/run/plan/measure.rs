//! Measures the layers of a run and the exchange of bytes on this machine.

use ronde::host;
use ronde_data::Split;
use ronde_parallel::{Codec, ModelState, encode_once};
use ronde_planner::{
    ClusterShape, CodecCosts, LayerCosts, LinkCosts, ModelCosts, PassCosts, WorkerCosts,
};
use ronde_schedule::CostModel;
use ronde_train::{LinkTimes, Plan, WorkerTimes, rehearsed_step_s};

/// The most workers that are measured at once.
const CROWD_MAX: usize = 64;

/// What was measured on this machine.
pub(super) struct Measured {
    /// One worker alone.
    pub(super) alone: WorkerTimes,
    /// A number of workers at once, if this machine has cores and memory for several.
    pub(super) crowded: Option<(usize, WorkerTimes)>,
    /// The costs of a worker on a host that is more or less busy.
    pub(super) worker: WorkerCosts,
    links: LinkTimes,
}

/// Measures for about `seconds`; each worker needs `worker_bytes` of memory. The error is a complete message.
pub(super) fn measure(
    plan: &Plan,
    split: &Split,
    worker_bytes: u64,
    seconds: u64,
) -> Result<Measured, String> {
    let failed = |error| format!("error: cannot measure the run on this machine: {error}");
    let threads = plan.config.workers.threads.max(1) as usize;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fitting = match host::available_memory_bytes() {
        Some(available) => available / worker_bytes.max(1),
        None => u64::MAX,
    };
    if fitting == 0 {
        return Err(
            "error: cannot measure the run on this machine: one worker does not fit into its memory\n  \
             help: measure smaller shards (raise workers.logical_shards), or run `ronde plan` on a larger machine"
                .to_owned(),
        );
    }
    let links = LinkTimes::measure(&plan.config.comm).map_err(failed)?;
    let crowd = (cores / threads).min(CROWD_MAX).min(fitting as usize);
    // The rest is for steps of all workers together.
    let limit_s = seconds as f64 * if crowd > 1 { 0.4 } else { 1.0 };
    let of = |workers| WorkerTimes::measure(&plan.config, split, workers, limit_s).map_err(failed);
    let alone = of(1)?;
    let crowded = match crowd {
        0 | 1 => None,
        workers => Some((workers, of(workers)?)),
    };
    let worker = WorkerCosts {
        alone: model_costs(&alone),
        crowded: crowded.as_ref().map(|(_, times)| model_costs(times)),
        alone_share: (threads as f64 / cores as f64).min(1.0),
    };
    Ok(Measured {
        alone,
        crowded,
        worker,
        links,
    })
}

/// Returns the seconds that a step of as many workers as this machine has cores for takes besides what is forecast for it: they are
/// trained for some steps. `forecast_s` returns the forecast of that number of workers with the whole model each. The error is a
/// complete message.
pub(super) fn crowded_s(
    plan: &Plan,
    split: &Split,
    workers: usize,
    seconds: u64,
    forecast_s: impl FnOnce(u32) -> Option<f64>,
) -> Result<f64, String> {
    let shards = plan.shards.shards() as usize;
    let workers = workers.min(shards);
    let Some(forecast_s) = forecast_s(workers as u32).filter(|_| workers > 1) else {
        return Ok(0.0);
    };
    let steps = 0.2 * seconds as f64 / forecast_s.max(1e-6);
    let steps = (steps as usize).clamp(5, 1000);
    let measured_s = rehearsed_step_s(&plan.config, split, workers, steps)
        .map_err(|error| format!("error: cannot measure the run on this machine: {error}"))?;
    Ok(measured_s - forecast_s)
}

/// The short forms of gradients that are forecast, with what is known about their accuracy.
const CODECS: [(&str, Codec, &str); 3] = [
    ("bf16", Codec::Bf16, "no loss of accuracy measured"),
    (
        "int8_blocks",
        Codec::Int8Blocks,
        "no loss of accuracy measured",
    ),
    (
        "top_k",
        Codec::TopK { ratio: 0.01 },
        "with AdamW a higher loss: 28 % after 306 steps of examples/gpt.toml",
    ),
];

/// Measures the short forms of gradients of a model, each once.
pub(super) fn codec_costs(state: &ModelState) -> Vec<CodecCosts> {
    let mut values: Vec<f32> = vec![0.0; state.len()];
    let codecs = CODECS.into_iter().filter_map(|(name, codec, accuracy)| {
        // Values of different magnitudes, as gradients have.
        for (at, value) in values.iter_mut().enumerate() {
            let mixed = (at as u32).wrapping_mul(0x9e37_79b9) >> 8;
            *value = (mixed as f32 / 8_388_608.0 - 1.0).powi(3);
        }
        let begun = ronde_clock::now();
        let bytes = encode_once(codec, state, &mut values)?;
        Some(CodecCosts {
            codec: name,
            bytes_share: bytes as f64 / (4 * state.len().max(1)) as f64,
            encode_s: begun.elapsed().as_secs_f64(),
            accuracy,
        })
    });
    codecs.collect()
}

fn model_costs(times: &WorkerTimes) -> ModelCosts {
    let layers = times.layers.iter().map(|layer| LayerCosts {
        name: layer.name.clone(),
        elements: layer.elements,
        output_bytes: layer.output_bytes,
        output_part_bytes: layer.output_part_bytes.clone(),
        passes: PassCosts {
            forward_s: layer.forward_s,
            backward_s: layer.backward_s,
            backward_weights_s: layer.backward_weights_s,
        },
        first_part: layer.first_part.map(|part| PassCosts {
            forward_s: part.forward_s,
            backward_s: part.backward_s,
            backward_weights_s: part.backward_weights_s,
        }),
        transfers: layer.transfers.clone(),
    });
    ModelCosts {
        layers: layers.collect(),
        loss_s: times.loss_s,
        add_element_s: times.add_element_s,
        copy_element_s: times.copy_element_s,
        update_element_s: times.update_element_s,
        step_s: times.step_s,
        decode_s: times.decode_s,
        parts: times.parts,
        loss_transfers: times.loss_transfers.clone(),
        exchange_element_s: times.exchange_element_s,
    }
}

impl Measured {
    /// Returns the costs of links within the hosts of a cluster, as measured here, and between them, as described.
    pub(super) fn links(&self, cluster: &ClusterShape) -> LinkCosts {
        let collectives = CostModel {
            cores: cluster.cores as usize,
            ..self.links.collectives
        };
        let (message_s, byte_s) = (self.links.message_s, self.links.message_byte_s);
        LinkCosts::new(collectives, message_s, byte_s, cluster.link)
    }
}
