//! [`ConvertedTensor`]: tensors of a saved model with the names and layouts of another library.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ronde_core::layout::TensorEntry;

use crate::error::ModelError;
use crate::names::Counterpart;
use crate::names::Naming;
use crate::saved_model::SavedModel;
use crate::write::NamedTensor;

/// A tensor with its name and layout in another library.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConvertedTensor<'a> {
    /// The name.
    pub(crate) name: String,
    /// A second name of the same values.
    pub(crate) alias: Option<String>,
    /// The length of each dimension.
    pub(crate) shape: Vec<usize>,
    /// The values, row-major.
    pub(crate) values: Cow<'a, [f32]>,
}

impl ConvertedTensor<'_> {
    pub(crate) fn named(&self) -> NamedTensor<'_> {
        NamedTensor {
            name: &self.name,
            shape: &self.shape,
            values: &self.values,
        }
    }
}

/// Returns all tensors of a saved model in a naming, by name. Memory: a copy of those whose layouts differ.
///
/// # Errors
/// The model is not a built-in one, its weights do not fit it, or the naming has no module like it.
pub(crate) fn convert(
    saved: &SavedModel,
    naming: Naming,
) -> Result<Vec<ConvertedTensor<'_>>, ModelError> {
    if naming == Naming::Ronde {
        // The tensors of a user's own model are not known.
        if saved.manifest().model.is_some() {
            saved.check()?;
        }
        return Ok(unchanged(saved));
    }
    let layers = saved.outline()?;
    saved.check_tensors(&layers)?;
    let model = saved.config()?;
    let mut found: BTreeMap<String, ConvertedTensor<'_>> = BTreeMap::new();
    let entries = layers.iter().flat_map(|layer| &layer.layout().tensors);
    for entry in entries {
        let Some(counterpart) = naming.of(model, &entry.name) else {
            return Err(ModelError::NoCounterpart {
                model: model.kind(),
                naming: naming.name(),
            });
        };
        let values = saved.weights().values_of(&entry.name).unwrap_or_default();
        add(&mut found, entry, counterpart, values);
    }
    Ok(found.into_values().collect())
}

fn unchanged(saved: &SavedModel) -> Vec<ConvertedTensor<'_>> {
    let weights = saved.weights();
    let tensors = weights.tensors().iter().filter_map(|(name, stored)| {
        Some(ConvertedTensor {
            name: name.clone(),
            alias: None,
            shape: stored.shape.clone(),
            values: Cow::Borrowed(weights.values_of(name)?),
        })
    });
    tensors.collect()
}

fn add<'a>(
    found: &mut BTreeMap<String, ConvertedTensor<'a>>,
    entry: &TensorEntry,
    counterpart: Counterpart,
    values: &'a [f32],
) {
    let Counterpart { name, columns, .. } = counterpart;
    if let Some((columns, length)) = columns {
        let mut shape = entry.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = length;
        }
        let joined = found
            .entry(name.clone())
            .or_insert_with(|| ConvertedTensor {
                name,
                alias: None,
                values: Cow::Owned(vec![0.0; shape.iter().product()]),
                shape,
            });
        let rows = joined.values.to_mut().chunks_exact_mut(length.max(1));
        for (to, from) in rows.zip(values.chunks_exact(columns.len().max(1))) {
            to[columns.clone()].copy_from_slice(from);
        }
        return;
    }
    let (shape, values) = match (counterpart.is_transposed, entry.shape.as_slice()) {
        (true, &[rows, columns]) => (
            vec![columns, rows],
            Cow::Owned(transposed(values, [rows, columns])),
        ),
        _ => (entry.shape.clone(), Cow::Borrowed(values)),
    };
    let converted = ConvertedTensor {
        name: name.clone(),
        alias: counterpart.alias,
        shape,
        values,
    };
    found.insert(name, converted);
}

/// Returns a matrix of `[rows, columns]` as `[columns, rows]`.
pub(crate) fn transposed(matrix: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    let elements = (0..columns).flat_map(|column| (0..rows).map(move |row| (row, column)));
    elements
        .map(|(row, column)| matrix[row * columns + column])
        .collect()
}
