//! [`InitialWeights`]: the weights of a file as the initial weights of a model, for fine-tuning.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ronde_core::layout::{Arena, StateLayout, TensorEntry};
use ronde_engine::{Chain, LayerExt, ModelConfig, matches_pattern};

use crate::converted::transposed;
use crate::error::{ModelError, TensorProblem};
use crate::manifest::WEIGHTS_FILE;
use crate::names::Counterpart;
use crate::names::Naming;
use crate::weight_file::StoredTensor;
use crate::weight_file::WeightFile;

/// The maximum number of names in a message.
const NAMES_SHOWN_MAX: usize = 6;

/// The weights of a file, matched with the tensors of a model by name and shape. The file may have the names of ronde, of
/// torchvision (ResNet and VGG) or of Hugging Face (GPT-2).
#[derive(Debug, Clone)]
pub struct InitialWeights {
    file: WeightFile,
    naming: Naming,
    loaded: Vec<LoadedTensor>,
    drawn: Vec<String>,
    /// The tensors of the file that are left out by name.
    ignored: Vec<String>,
    /// The tensors of the file that no model needs.
    harmless: Vec<String>,
}

/// The tensors that are not loaded, by patterns in which `*` matches any text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TensorExclusions {
    /// The tensors of the model that keep the initial values that the seed determines.
    pub drawn: Vec<String>,
    /// The tensors of the file that are treated as if they were not in it.
    pub ignored: Vec<String>,
}

/// A tensor of the model, and its values in the file.
#[derive(Debug, Clone)]
struct LoadedTensor {
    entry: TensorEntry,
    counterpart: Counterpart,
    stored: StoredTensor,
}

impl InitialWeights {
    /// Returns the file that a path refers to: itself, or the weights in the folder of a run or model.
    #[must_use]
    pub fn file_of(path: &Path) -> PathBuf {
        if path.is_dir() {
            path.join(WEIGHTS_FILE)
        } else {
            path.to_owned()
        }
    }

    /// Matches the tensors of a file with those of a model, whole ones also for a model in parts. `model` is absent for a user's own
    /// model, whose files have its own names.
    ///
    /// # Errors
    /// A tensor of the model is missing, has another shape or no floating-point values; or the file has a tensor that the model
    /// does not use, unless no model needs it, such as a counter of batches. All are named. A pattern matches no tensor.
    pub fn new(
        mut file: WeightFile,
        model: Option<&ModelConfig>,
        layout: &StateLayout,
        exclusions: &TensorExclusions,
    ) -> Result<Self, ModelError> {
        let TensorExclusions { drawn, ignored } = exclusions;
        let layout = &layout.whole();
        let names = layout.tensors.iter().map(|entry| entry.name.as_str());
        check_patterns(drawn, "the model", names)?;
        let in_file = file.tensors().keys().map(String::as_str);
        check_patterns(ignored, "the file", in_file)?;
        let ignored = file.remove(|name| is_selected(ignored, name));
        let (naming, counterparts) = detect(&file, model, layout)?;
        let mut matching = Matching::default();
        for (entry, counterpart) in layout.tensors.iter().zip(counterparts) {
            let is_drawn = is_selected(drawn, &entry.name);
            matching.add(&file, entry, counterpart, is_drawn);
        }
        let harmless = matching.check_unused(&file, naming);
        if !matching.problems.is_empty() {
            return Err(ModelError::Tensors {
                path: file.path().to_owned(),
                problems: matching.problems,
            });
        }
        Ok(Self {
            file,
            naming,
            loaded: matching.loaded,
            drawn: matching.drawn,
            ignored,
            harmless,
        })
    }

    /// Returns the BLAKE3 hash of the file, 64 hexadecimal digits.
    #[must_use]
    pub fn blake3(&self) -> &str {
        self.file.blake3()
    }

    /// Sets the loaded tensors of a model; the remaining ones keep their values. Cost: two copies of the state.
    pub fn load_into(&self, chain: &mut Chain) {
        let tensors = &chain.layout().tensors;
        let arena = Arena::new(tensors.iter().map(TensorEntry::elements));
        let mut values = vec![0.0; arena.len()];
        chain.save_state(&mut values, arena.ranges());
        self.write_into(
            tensors.iter().zip(arena.ranges().iter().cloned()),
            &mut values,
        );
        let ranges = arena.ranges().to_vec();
        chain.load(&values, &ranges);
    }

    /// Sets the loaded tensors in the state of a model, whose tensors have these ranges; the remaining values stay.
    pub fn write_into<'a>(
        &self,
        tensors: impl IntoIterator<Item = (&'a TensorEntry, Range<usize>)>,
        values: &mut [f32],
    ) {
        for (entry, to) in tensors {
            let name = entry.whole_name();
            let loaded = self.loaded.iter().find(|one| one.entry.name == name);
            let from = loaded.and_then(|one| Some((one, one.stored.range.clone()?)));
            if let Some((loaded, from)) = from {
                let from = &self.file.values()[from];
                match &entry.part {
                    None => loaded.convert(from, &mut values[to]),
                    Some(part) => {
                        let mut whole = vec![0.0; loaded.entry.elements()];
                        loaded.convert(from, &mut whole);
                        part.take(&whole, &mut values[to]);
                    }
                }
            }
        }
    }

    /// Describes the tensors that were loaded, those that were not, and the parts of the file that are not used.
    #[must_use]
    pub fn summary(&self) -> String {
        let path = self.file.path().display();
        let (count, naming) = (self.loaded.len(), self.naming.name());
        let mut text =
            format!("initial weights: {count} tensors of {path}, with names of {naming}");
        for (what, names) in [
            ("not loaded, as configured", &self.drawn),
            ("left out of the file, as configured", &self.ignored),
            ("not used by any model", &self.harmless),
        ] {
            if !names.is_empty() {
                let names = first_names(names.iter().map(String::as_str));
                text.push_str(&format!("; {what}: {names}"));
            }
        }
        for loaded in &self.loaded {
            let rows = (loaded.entry.shape.first(), loaded.stored.shape.first());
            if let (true, (Some(used), Some(all))) = (loaded.has_more_rows(), rows) {
                let name = &loaded.counterpart.name;
                text.push_str(&format!("; the first {used} of {all} rows of `{name}`"));
            }
        }
        text
    }
}

/// The tensors of a model and a file that are being matched.
#[derive(Default)]
struct Matching {
    loaded: Vec<LoadedTensor>,
    drawn: Vec<String>,
    problems: Vec<TensorProblem>,
    /// The names in the file whose values are loaded, or which the settings replace.
    used: BTreeSet<String>,
}

impl Matching {
    /// Finds the values of a tensor of the model.
    fn add(
        &mut self,
        file: &WeightFile,
        entry: &TensorEntry,
        counterpart: Counterpart,
        is_drawn: bool,
    ) {
        let names = counterpart
            .names()
            .filter(|name| file.tensors().contains_key(*name));
        let names: Vec<String> = names.map(str::to_owned).collect();
        if is_drawn {
            self.used.extend(names);
            self.drawn.push(entry.name.clone());
            return;
        }
        if let Some((from, more)) = names.split_first() {
            let differs = |name: &&String| !file.are_equal(from, name);
            let differing = more.iter().filter(differs);
            self.problems
                .extend(differing.map(|name| TensorProblem::Differs {
                    name: name.clone(),
                    from: from.clone(),
                }));
        }
        let mut fallbacks = counterpart.fallback_names();
        let fallback = fallbacks.find(|name| file.tensors().contains_key(*name));
        let from = names.first().map(String::as_str).or(fallback);
        let found = stored(file, entry, &counterpart, from);
        drop(fallbacks);
        match found {
            Ok(stored) => self.loaded.push(LoadedTensor {
                entry: entry.clone(),
                counterpart,
                stored,
            }),
            Err(problem) => self.problems.push(problem),
        }
        self.used.extend(names);
    }

    /// Adds a problem for each tensor of a file that the model does not use, unless no model needs it. Returns the names of those.
    fn check_unused(&mut self, file: &WeightFile, naming: Naming) -> Vec<String> {
        let unused = file.tensors().iter();
        let unused = unused.filter(|(name, _)| !self.used.contains(*name));
        let (harmless, unknown): (Vec<_>, Vec<_>) =
            unused.partition(|(name, stored)| naming.is_harmless(name, &stored.shape));
        let unknown = unknown.into_iter();
        self.problems.extend(unknown.map(|(name, _)| {
            let name = name.clone();
            TensorProblem::Unknown { name }
        }));
        harmless.into_iter().map(|(name, _)| name.clone()).collect()
    }
}

fn is_selected(patterns: &[String], name: &str) -> bool {
    patterns
        .iter()
        .any(|pattern| matches_pattern(pattern, name))
}

/// Returns an error for a pattern that matches none of the names.
fn check_patterns<'a>(
    patterns: &[String],
    owner: &'static str,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), ModelError> {
    for pattern in patterns {
        if !names.clone().any(|name| matches_pattern(pattern, name)) {
            return Err(ModelError::Pattern {
                pattern: pattern.clone(),
                owner,
                expected: first_names(names),
            });
        }
    }
    Ok(())
}

impl LoadedTensor {
    /// Returns whether the file has more rows, and the model uses the first.
    fn has_more_rows(&self) -> bool {
        self.counterpart.may_have_more_rows && self.stored.shape.first() > self.entry.shape.first()
    }

    /// Writes the values of the file in our layout.
    fn convert(&self, from: &[f32], to: &mut [f32]) {
        if let Some((columns, length)) = &self.counterpart.columns {
            let rows = from.chunks_exact((*length).max(1));
            for (from, to) in rows.zip(to.chunks_exact_mut(columns.len().max(1))) {
                to.copy_from_slice(&from[columns.clone()]);
            }
        } else if let (true, &[rows, columns]) =
            (self.counterpart.is_transposed, self.stored.shape.as_slice())
        {
            to.copy_from_slice(&transposed(from, [rows, columns]));
        } else {
            // The file may have more rows.
            to.copy_from_slice(&from[..to.len()]);
        }
    }
}

/// Returns the naming with the most tensors in a file, and the counterparts of all tensors in it.
fn detect(
    file: &WeightFile,
    model: Option<&ModelConfig>,
    layout: &StateLayout,
) -> Result<(Naming, Vec<Counterpart>), ModelError> {
    let mut best: Option<(usize, Naming, Vec<Counterpart>)> = None;
    for naming in Naming::ALL {
        let counterparts = layout.tensors.iter().map(|entry| match model {
            Some(model) => naming.of(model, &entry.name),
            None => (naming == Naming::Ronde).then(|| Counterpart::named(&*entry.name)),
        });
        let Some(counterparts) = counterparts.collect::<Option<Vec<_>>>() else {
            continue;
        };
        let is_in_file =
            |one: &&Counterpart| one.names().any(|name| file.tensors().contains_key(name));
        let count = counterparts.iter().filter(is_in_file).count();
        if count > best.as_ref().map_or(0, |(most, ..)| *most) {
            best = Some((count, naming, counterparts));
        }
    }
    match best {
        Some((_, naming, counterparts)) => Ok((naming, counterparts)),
        None => Err(ModelError::ForeignNames {
            path: file.path().to_owned(),
            found: first_names(file.tensors().keys().map(String::as_str)),
            expected: first_names(layout.tensors.iter().map(|entry| entry.name.as_str())),
        }),
    }
}

/// Returns the tensor of a file, with this name, that has the values of one of ours.
fn stored(
    file: &WeightFile,
    entry: &TensorEntry,
    counterpart: &Counterpart,
    from: Option<&str>,
) -> Result<StoredTensor, TensorProblem> {
    let found = from.and_then(|name| Some((name, file.tensors().get(name)?)));
    let Some((name, stored)) = found else {
        let name = match counterpart.name == entry.name {
            true => entry.name.clone(),
            false => format!("{} ({})", counterpart.name, entry.name),
        };
        return Err(TensorProblem::Missing { name });
    };
    let expected = counterpart.shape_of(&entry.shape);
    let fits = match (counterpart.may_have_more_rows, &*stored.shape, &*expected) {
        (true, [rows, rest @ ..], [least, needed @ ..]) => rows >= least && rest == needed,
        (_, found, expected) => found == expected,
    };
    if !fits {
        return Err(TensorProblem::Shape {
            name: name.to_owned(),
            found: stored.shape.clone(),
            expected,
        });
    }
    if stored.range.is_none() {
        return Err(TensorProblem::Format {
            name: name.to_owned(),
            found: stored.dtype.clone(),
        });
    }
    match file.not_finite(name) {
        Some(problem) => Err(problem),
        None => Ok(stored.clone()),
    }
}

fn first_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let shown = names[..names.len().min(NAMES_SHOWN_MAX)].join("`, `");
    match names.len().checked_sub(NAMES_SHOWN_MAX) {
        None | Some(0) if names.is_empty() => "none".to_owned(),
        None | Some(0) => format!("`{shown}`"),
        Some(more) => format!("`{shown}` and {more} more"),
    }
}

#[cfg(test)]
mod tests;
