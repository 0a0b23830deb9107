//! Writes the model of a run: its weights, and a manifest with the settings of the plan.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ronde_clock::Stopwatch;
use ronde_core::{
    Buffer, CollectiveError, CollectivesExt, DType, DataSignature, Event, FormatHeader, GroupRank,
    Tag, TokenTexts, Tracker, Work,
};
use ronde_data::{DatasetDescription, Targets, Vocabulary};
use ronde_parallel::ModelState;
use ronde_protocol::holdings::HeldRanges;
use ronde_saved_model::{
    BestEvaluation, ImageInput, ModelEvaluation, ModelManifest, NamedTensor, PublishedModel,
    TOKENIZER_FILE, TargetKind, TensorSource,
};

use crate::error::TrainError;
use crate::plan::Plan;
use crate::training::whole_model::pieces;
use crate::training::{Training, TrainingResult};

/// Writes weights and manifest of a training into `folder` after a number of steps; an earlier model is replaced atomically. If
/// the workers have different parts of the weights, only the function that publishes the model on rank 0 may call this: the other ranks then
/// send their tensors, one after the other.
///
/// # Errors
/// A file cannot be written, or a rank was lost. No incomplete file remains under the final names.
fn save(
    folder: &Path,
    training: &Training,
    steps: u64,
    model: ModelDescription,
) -> Result<PublishedModel, TrainError> {
    let manifest = manifest(folder, training.plan(), steps, model)?;
    let is_divided = training.divides_weights();
    let has_parts = state_has_parts(training.state());
    if !is_divided && !has_parts {
        let tensors = tensors_without_parts(training.state());
        return Ok(ronde_saved_model::save(folder, tensors, &manifest)?);
    }
    if is_divided {
        tell_ranks(training, SEND)?;
    }
    let mut source = TensorsOfRanks {
        training,
        tensors: whole_tensors(training.state()),
        owned: match is_divided {
            true => training.owned(),
            false => vec![training.state().all()],
        },
        lost: None,
    };
    let saved = ronde_saved_model::save_from(folder, &mut source, &manifest);
    match source.lost {
        Some(error) => Err(TrainError::Farewell(error)),
        None => Ok(saved?),
    }
}

/// Describes a model in its manifest, and writes a tokenizer beside it.
///
/// # Errors
/// The tokenizer cannot be written.
pub(crate) fn manifest(
    folder: &Path,
    plan: &Plan,
    steps: u64,
    model: ModelDescription,
) -> Result<ModelManifest, TrainError> {
    let identity = plan.identity.parts();
    let vocabulary = model.vocabulary.as_deref();
    let vocabulary = vocabulary.map(|one| save_vocabulary(folder, one));
    Ok(ModelManifest {
        header: FormatHeader::of(FormatHeader::MODEL),
        run: plan.config.run.name.clone(),
        model: model.config,
        input_shape: model.input_shape,
        classes: model.classes,
        images: model.images,
        targets: Some(model.targets),
        signature: model.signature,
        vocabulary: vocabulary.transpose()?,
        steps,
        plan: plan.identity.hex(),
        identity: identity
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        unrepeatable: plan.config.sync.facts().unrepeatable.map(str::to_owned),
        blake3: String::new(),
        evaluation: model.evaluation.map(|evaluation| ModelEvaluation {
            data: plan.test_data.clone(),
            ..evaluation
        }),
        best: model.best,
    })
}

/// Describes the text of tokens, and writes a tokenizer beside the model.
fn save_vocabulary(folder: &Path, vocabulary: &Vocabulary) -> Result<TokenTexts, TrainError> {
    if let Some(json) = vocabulary.tokenizer_json()? {
        ronde_saved_model::publish(&folder.join(TOKENIZER_FILE), &json)?;
    }
    Ok(vocabulary.texts())
}

/// A tensor of a model as it is written.
pub(crate) struct WholeTensor {
    name: String,
    shape: Vec<usize>,
    /// The numbers of its parts among the tensors of the state; its own number if it is whole there.
    sources: Vec<usize>,
}

impl WholeTensor {
    /// Returns the tensor with its values.
    pub(crate) fn named<'a>(&'a self, values: &'a [f32]) -> NamedTensor<'a> {
        NamedTensor {
            name: &self.name,
            shape: &self.shape,
            values,
        }
    }
}

fn state_has_parts(state: &ModelState) -> bool {
    let mut tensors = state.tensors().iter();
    tensors.any(|tensor| tensor.entry.part.is_some())
}

/// Returns the whole tensors of a state.
fn whole_tensors(state: &ModelState) -> Vec<WholeTensor> {
    let mut of_name: BTreeMap<&str, WholeTensor> = BTreeMap::new();
    for (index, tensor) in state.tensors().iter().enumerate() {
        let entry = &tensor.entry;
        let shape = entry.part.as_ref().map_or(&entry.shape, |part| &part.shape);
        let whole = of_name.entry(entry.whole_name());
        let whole = whole.or_insert_with(|| WholeTensor {
            name: entry.whole_name().to_owned(),
            shape: shape.clone(),
            sources: Vec::new(),
        });
        whole.sources.push(index);
    }
    of_name.into_values().collect()
}

/// Returns the tensors of a state by name that the layers have in one piece. Cost: none.
pub(crate) fn tensors_without_parts(state: &ModelState) -> impl Iterator<Item = NamedTensor<'_>> {
    let whole = state.tensors().iter();
    let whole = whole.filter(|tensor| tensor.entry.part.is_none());
    whole.filter_map(|tensor| {
        Some(NamedTensor {
            name: &tensor.entry.name,
            shape: &tensor.entry.shape,
            values: state.get(&tensor.range)?,
        })
    })
}

/// Returns the remaining tensors of a whole state, joined. Cost: a copy of their values.
pub(crate) fn joined_tensors(state: &ModelState) -> Vec<(WholeTensor, Vec<f32>)> {
    let tensors = state.tensors();
    let is_in_parts = |index: &usize| tensors[*index].entry.part.is_some();
    let whole = whole_tensors(state).into_iter();
    let whole = whole.filter(|tensor| tensor.sources.iter().any(is_in_parts));
    let joined = whole.map(|tensor| {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        for source in &tensor.sources {
            let own = state.get(&tensors[*source].range).unwrap_or_default();
            if let Some(part) = &tensors[*source].entry.part {
                part.place(own, &mut values);
            }
        }
        (tensor, values)
    });
    joined.collect()
}

/// The tag of parts of tensors on their way to the rank that writes the model.
const TAG: Tag = Tag(0x6578_706f);

/// The tag of the confirmations that a part has been written.
const WRITTEN: Tag = Tag(0x7772_6974);

/// Asks the ranks with other layers for their tensors.
const SEND: u8 = 1;
/// Tells them that no more tensors are needed.
const DONE: u8 = 0;
/// Tells them that rank 0 waits for space on its disk.
const WAIT: u8 = 2;
/// The time between two attempts to write a model to a full disk.
const SPACE_PAUSE: Duration = Duration::from_secs(1);

/// A wait until a model can be written.
#[derive(Debug, Default)]
struct SpaceWait {
    /// When it was last reported, in seconds since its start.
    reported_s: Option<f64>,
}

impl SpaceWait {
    /// The longest wait, in seconds.
    const LIMIT_S: f64 = 3600.0;
    /// The time between two reports, in seconds.
    const REPORT_EVERY_S: f64 = 600.0;

    /// Returns the seconds that are left if the wait, which has taken `waited_s`, is to be reported now.
    fn report(&mut self, waited_s: f64) -> Option<f64> {
        let is_due = (self.reported_s).is_none_or(|at| waited_s >= at + Self::REPORT_EVERY_S);
        is_due.then(|| {
            self.reported_s = Some(waited_s);
            Self::LIMIT_S - waited_s
        })
    }
}

/// Writes the trained model as [`save`] does. While the disk is full or cannot be written to, waits up to an hour, or until the
/// run is to stop: only the memory of the workers has the trained weights.
///
/// # Errors
/// A file cannot be written, or a rank was lost.
pub(crate) fn save_when_there_is_space(
    folder: &Path,
    training: &Training,
    steps: u64,
    model: &ModelDescription,
    tracker: &dyn Tracker,
) -> Result<PublishedModel, TrainError> {
    let (since, mut wait) = (Stopwatch::start(), SpaceWait::default());
    loop {
        let outcome = save(folder, training, steps, model.clone());
        let waited_s = since.elapsed_s();
        let is_over = waited_s >= SpaceWait::LIMIT_S || training.is_asked_to_stop();
        let error = match outcome {
            Err(error) if may_pass(&error) && !is_over => error,
            outcome => return outcome,
        };
        if let Some(left_s) = wait.report(waited_s) {
            let message = format!(
                "{error}; training is finished, and the workers keep the model until it can be written, for at most {:.0} minutes; \
                 Ctrl-C gives it up",
                left_s / 60.0
            );
            let rank = Some(training.rank());
            tracker.record(Event::Notice { rank, message });
        }
        thread::park_timeout(SPACE_PAUSE);
        match tell_ranks(training, WAIT) {
            // The other ranks have left.
            Err(_) if training.is_asked_to_stop() => return Err(error),
            other => other?,
        }
    }
}

/// Returns whether a person can remove the cause of an error while the workers wait.
fn may_pass(error: &TrainError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return ronde_store::may_pass(error.kind());
        }
        cause = error.source();
    }
    false
}

/// Tells the other ranks what rank 0 needs from them.
fn tell_ranks(training: &Training, what: u8) -> Result<(), TrainError> {
    let sent = training.group().broadcast(&mut [what], GroupRank(0));
    sent.map_err(TrainError::Farewell)
}

/// Tells the other ranks that the model is published.
pub(crate) fn release_ranks(training: &Training) -> Result<(), TrainError> {
    tell_ranks(training, DONE)
}

/// Sends tensors as long as rank 0 requests them.
///
/// # Errors
/// A rank was lost, or rank 0 cannot write the model.
pub(crate) fn serve_tensors(training: &Training) -> Result<(), TrainError> {
    loop {
        let mut what = [DONE];
        let sent = training.group().broadcast(&mut what, GroupRank(0));
        sent.map_err(TrainError::Farewell)?;
        match what {
            [SEND] => send_tensors(training).map_err(TrainError::Farewell)?,
            [WAIT] => {}
            _ => return Ok(()),
        }
    }
}

/// The number of pieces that a rank sends before the first of them is written, so that they do not fill the memory of rank 0.
const AHEAD: usize = 4;

/// The tensors of a training whose ranks have different parts of the model, or whose layers are in parts.
struct TensorsOfRanks<'a> {
    training: &'a Training,
    tensors: Vec<WholeTensor>,
    /// The elements that each rank sends; those of this rank alone if it has all.
    owned: Vec<HeldRanges>,
    /// The error of the group.
    lost: Option<CollectiveError>,
}

impl TensorSource for TensorsOfRanks<'_> {
    fn tensors(&self) -> Vec<(&str, &[usize])> {
        let each = self.tensors.iter();
        each.map(|tensor| (&*tensor.name, &*tensor.shape)).collect()
    }

    fn read(
        &mut self,
        index: usize,
        write: &mut dyn FnMut(&[f32]) -> io::Result<()>,
    ) -> io::Result<()> {
        let tensor = &self.tensors[index];
        let sources = tensor.sources.clone();
        let elements = tensor.shape.iter().product();
        let tensors = self.training.state().tensors();
        let mut whole = Vec::new();
        for source in sources {
            let Some(part) = &tensors[source].entry.part else {
                self.read_tensor(source, write)?;
                continue;
            };
            whole.resize(elements, 0.0);
            let mut own = Vec::with_capacity(tensors[source].range.len());
            self.read_tensor(source, &mut |values| {
                own.extend_from_slice(values);
                Ok(())
            })?;
            part.place(&own, &mut whole);
        }
        match whole.is_empty() {
            true => Ok(()),
            false => write(&whole),
        }
    }
}

impl TensorsOfRanks<'_> {
    /// Passes the values of a tensor of the state to `write`, one part after the other.
    fn read_tensor(
        &mut self,
        index: usize,
        write: &mut dyn FnMut(&[f32]) -> io::Result<()>,
    ) -> io::Result<()> {
        let group = self.training.group();
        let state = self.training.state();
        if self.owned.len() == 1 {
            return write(state.get(&state.tensors()[index].range).unwrap_or_default());
        }
        let mut parts = Vec::new();
        for (rank, owned) in self.owned.iter().enumerate() {
            let within = owned.within(&state.tensors()[index].range);
            parts.extend(pieces(within).map(|part| (part, rank)));
        }
        parts.sort_by_key(|(part, _)| part.start);
        for (part, rank) in parts {
            if rank == group.rank().index() {
                write(state.get(&part).unwrap_or_default())?;
                continue;
            }
            let from = GroupRank(rank as u32);
            let buffer = Buffer::host(DType::F32, part.len());
            let received = group.receive(from, TAG, buffer).and_then(Work::wait);
            let written = received.and_then(|values| {
                let written = write(values.as_slice());
                let confirmed = group.send(from, WRITTEN, Buffer::copy_of(&[0_u8]));
                confirmed.and_then(Work::wait).map(|_| written)
            });
            match written {
                Ok(written) => written?,
                Err(error) => {
                    let cause = io::Error::other(error.to_string());
                    self.lost = Some(error);
                    return Err(cause);
                }
            }
        }
        Ok(())
    }
}

/// Sends the tensors that this rank answers for to rank 0, which writes the model with [`save`]. Cost: a few pieces of memory.
fn send_tensors(training: &Training) -> Result<(), CollectiveError> {
    let (group, state) = (training.group(), training.state());
    let owned = training.owned().swap_remove(group.rank().index());
    let tensors = state.tensors();
    let whole = whole_tensors(state);
    let names: Vec<&str> = whole.iter().map(|tensor| &*tensor.name).collect();
    let written = || {
        let confirmed = group.receive(GroupRank(0), WRITTEN, Buffer::host(DType::U8, 1))?;
        confirmed.wait().map(drop)
    };
    let mut sends: VecDeque<Box<dyn Work>> = VecDeque::new();
    let order = ronde_saved_model::file_order(&names).into_iter();
    for index in order.flat_map(|index| &whole[index].sources) {
        for part in pieces(owned.within(&tensors[*index].range)) {
            if sends.len() == AHEAD
                && let Some(first) = sends.pop_front()
            {
                first.wait()?;
                written()?;
            }
            let values = Buffer::copy_of(state.get(&part).unwrap_or_default());
            sends.push_back(group.send(GroupRank(0), TAG, values)?);
        }
    }
    for send in sends {
        send.wait()?;
        written()?;
    }
    Ok(())
}

/// The parts of the model's configuration that are not in the plan.
#[derive(Debug, Clone)]
pub struct ModelDescription {
    /// The configuration of a built-in model.
    pub config: Option<ronde_engine::ModelConfig>,
    /// The shape of one sample.
    pub input_shape: Vec<usize>,
    /// The number of classes.
    pub classes: u32,
    /// How encoded images become inputs, if the data has them.
    pub images: Option<ImageInput>,
    /// The kind of the targets.
    pub targets: TargetKind,
    /// The names and the units of the features and the targets.
    pub signature: DataSignature,
    /// The text of the tokens, if the data has it.
    pub vocabulary: Option<Arc<Vocabulary>>,
    /// The evaluation of the saved weights.
    pub evaluation: Option<ModelEvaluation>,
    /// The evaluation that chose the model, if one did.
    pub best: Option<BestEvaluation>,
}

impl ModelDescription {
    /// Describes a model of a training on samples of this form, before it is evaluated; `config` is that of a built-in model.
    #[must_use]
    pub fn new(config: Option<ronde_engine::ModelConfig>, data: &DatasetDescription) -> Self {
        Self {
            config,
            input_shape: data.shape.clone(),
            classes: data.classes,
            images: data.images.as_ref().map(|images| ImageInput {
                resize: images.resize,
                crops_center: images.crop.is_some(),
                mean: images.mean.clone(),
                std: images.std.clone(),
            }),
            targets: match data.targets {
                Targets::Classes => TargetKind::Classes,
                Targets::Values => TargetKind::Values,
                Targets::Boxes => TargetKind::Boxes,
            },
            signature: data.signature.clone(),
            vocabulary: data.vocabulary.clone(),
            evaluation: None,
            best: None,
        }
    }

    /// Adds the evaluation of the model of a training of `steps` steps, and whether it is the best one.
    #[must_use]
    pub fn evaluated(self, trained: &TrainingResult, steps: u64) -> Self {
        let evaluation = trained.evaluation.as_ref().map(|found| {
            let metrics = found
                .metrics
                .iter()
                .map(|(name, value)| (name.clone(), *value));
            let all = metrics.chain([("loss".to_owned(), found.loss)]);
            ModelEvaluation {
                steps: Some(trained.model_steps(steps)),
                samples: found.samples,
                data: None,
                values: all.filter(|(_, value)| value.is_finite()).collect(),
                confusion: found
                    .confusion
                    .as_ref()
                    .map(|matrix| matrix.rows().to_vec()),
            }
        });
        let best = trained.best.as_ref().map(|best| BestEvaluation {
            metric: best.metric.clone(),
            step: best.step.0,
            run_steps: Some(steps),
        });
        Self {
            evaluation,
            best,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_space_is_reported_at_once_and_then_every_ten_minutes() {
        let mut wait = SpaceWait::default();
        let reported = |second: u32| {
            wait.report(f64::from(second))
                .map(|left_s| (second, left_s))
        };
        let reports: Vec<(u32, f64)> = (0..1300).filter_map(reported).collect();
        assert_eq!(reports, [(0, 3600.0), (600, 3000.0), (1200, 2400.0)]);
    }
}
