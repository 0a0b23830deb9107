//! [`InitialWeights`]: the weights of a file as the initial weights of a model, for fine-tuning.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ronde_core::layout::{Arena, StateLayout, TensorEntry};
use ronde_engine::{Chain, Layer, ModelConfig, matches_pattern};

use crate::converted::transposed;
use crate::names::Counterpart;
use crate::weight_file::StoredTensor;
use crate::{ModelError, Naming, TensorProblem, WEIGHTS_FILE, WeightFile};

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
    unused: Vec<String>,
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

    /// Matches the tensors of a file with those of a model, whole ones also for a model in parts. Tensors whose names match a pattern of `drawn`, in which `*`
    /// stands for any text, are not loaded: they keep the initial values that the seed determines. `model` is absent for a
    /// user's own model, whose files have its own names.
    ///
    /// # Errors
    /// A tensor is missing, has another shape or no floating-point values; all are named. A pattern matches no tensor.
    pub fn new(
        file: WeightFile,
        model: Option<&ModelConfig>,
        layout: &StateLayout,
        drawn: &[String],
    ) -> Result<Self, ModelError> {
        let layout = &layout.whole();
        let names = layout.tensors.iter().map(|entry| entry.name.as_str());
        for pattern in drawn {
            if !names.clone().any(|name| matches_pattern(pattern, name)) {
                return Err(ModelError::Pattern {
                    pattern: pattern.clone(),
                    expected: first_names(names),
                });
            }
        }
        let (naming, counterparts) = detect(&file, model, layout)?;
        let mut found = Self {
            file,
            naming,
            loaded: Vec::new(),
            drawn: Vec::new(),
            unused: Vec::new(),
        };
        let mut known = BTreeSet::new();
        let mut problems = Vec::new();
        for (entry, counterpart) in layout.tensors.iter().zip(counterparts) {
            known.extend(counterpart.names().map(str::to_owned));
            if drawn.iter().any(|one| matches_pattern(one, &entry.name)) {
                found.drawn.push(entry.name.clone());
                continue;
            }
            match stored(&found.file, entry, &counterpart) {
                Ok(stored) => found.loaded.push(LoadedTensor {
                    entry: entry.clone(),
                    counterpart,
                    stored,
                }),
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            return Err(ModelError::Tensors {
                path: found.file.path().to_owned(),
                problems,
            });
        }
        let unused = found.file.tensors().keys();
        let unused = unused.filter(|name| !known.contains(*name) && !naming.is_ignored(name));
        found.unused = unused.cloned().collect();
        Ok(found)
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
        chain.save(&mut values, arena.ranges());
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

    /// Describes the tensors that were loaded, those that were not, and those of the file that are not used.
    #[must_use]
    pub fn summary(&self) -> String {
        let path = self.file.path().display();
        let (count, naming) = (self.loaded.len(), self.naming.name());
        let mut text =
            format!("initial weights: {count} tensors of {path}, with names of {naming}");
        for (what, names) in [
            ("not loaded, as configured", &self.drawn),
            ("not used by the model", &self.unused),
        ] {
            if !names.is_empty() {
                let names = first_names(names.iter().map(String::as_str));
                text.push_str(&format!("; {what}: {names}"));
            }
        }
        text
    }
}

impl LoadedTensor {
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

/// Returns the tensor of a file that has the values of one of ours.
fn stored(
    file: &WeightFile,
    entry: &TensorEntry,
    counterpart: &Counterpart,
) -> Result<StoredTensor, TensorProblem> {
    let found = counterpart
        .names()
        .find_map(|name| Some((name, file.tensors().get(name)?)));
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
