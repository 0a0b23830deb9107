//! [`ImageFiles`]: images without labels, one for each file.

use std::sync::Arc;

use ronde_core::Epoch;

use crate::dataset::FetchedSamples;
use crate::dataset::{Dataset, DatasetDescription, IGNORED, SampleOrigin};
use crate::decode::{DecodeScratch, IMAGE_DECODER, ImageDecoder, ImageFeatures};
use crate::error::DataError;
use crate::format::BadRecord;
use crate::format::folder::{IMAGE, is_image};
use crate::open_context::DataEvent;
use crate::open_context::OpenContext;
use crate::source::{FolderNames, SourceFile, expand};

/// The largest length of a file of an image, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 28;

/// Images without labels: a sample for each file, converted as for evaluation. Its target is [`IGNORED`].
pub struct ImageFiles {
    files: Vec<SourceFile>,
    decoder: Arc<ImageDecoder>,
    description: DatasetDescription,
}

impl std::fmt::Debug for ImageFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageFiles")
            .field("files", &self.files.len())
            .finish_non_exhaustive()
    }
}

impl ImageFiles {
    /// Finds the files that `patterns` match and whose names end in `.jpg`, `.jpeg`, `.png` or `.webp`, sorted by name; see
    /// [`expand`]. The number of the other files in folders is reported. The identity of the set covers the names and lengths of
    /// the files, not their contents. Cost: that of listing the files; none of them is read.
    ///
    /// # Errors
    /// As [`expand`] and [`ImageDecoder::new`], and if a named file or no file is an image.
    pub fn find(
        patterns: &[String],
        opening: &OpenContext,
        images: &ImageFeatures,
    ) -> Result<Self, DataError> {
        let opener = opening.opener(opening.remote.clone());
        let names = FolderNames::KnownFormats;
        let mut found = expand(patterns, &opening.base, &opener, names)?;
        found.retain(patterns, IMAGE, is_image)?;
        for notice in found.notices("the images") {
            (opening.report)(&DataEvent::Finding(notice));
        }
        let files = found.files;
        if files.is_empty() {
            return Err(DataError::Empty {
                addresses: patterns.join(", "),
            });
        }
        let mut hasher = blake3::Hasher::new_derive_key("ronde image files, version 1");
        for file in &files {
            hasher.update(&(file.name().len() as u64).to_le_bytes());
            hasher.update(file.name().as_bytes());
            hasher.update(&file.bytes().to_le_bytes());
        }
        let hash = hasher.finalize().to_hex();
        let identity = format!("images blake3:{hash}, {IMAGE_DECODER}");
        Ok(Self {
            files,
            decoder: Arc::new(ImageDecoder::new(images)?),
            description: DatasetDescription {
                images: Some(images.clone()),
                ..DatasetDescription::new(images.shape.clone(), 1, identity)
            },
        })
    }
}

impl Dataset for ImageFiles {
    fn len(&self) -> u64 {
        self.files.len() as u64
    }

    fn description(&self) -> &DatasetDescription {
        &self.description
    }

    fn origin(&self, sample: u64) -> Option<SampleOrigin> {
        let file = self.files.get(usize::try_from(sample).ok()?)?;
        Some(SampleOrigin {
            file: file.location(),
            record: 0,
        })
    }

    fn fetch(&self, samples: &[u64]) -> Result<Box<dyn FetchedSamples>, DataError> {
        let load = |sample: &u64| {
            let index = usize::try_from(*sample).ok();
            let file = index.and_then(|index| self.files.get(index));
            let file = file.ok_or_else(|| DataError::NoSuchSample {
                sample: *sample,
                samples: self.len(),
            })?;
            read(file)
        };
        let images = samples.iter().map(load).collect::<Result<_, DataError>>()?;
        Ok(Box::new(FetchedImages {
            images,
            decoder: Arc::clone(&self.decoder),
        }))
    }
}

/// Reads a file.
fn read(file: &SourceFile) -> Result<ImageFileContents, DataError> {
    let location = file.location();
    if file.bytes() > FILE_BYTES_MAX {
        let bytes = file.bytes();
        return Err(DataError::format(
            location,
            format_args!("it has {bytes} bytes; the limit of an image is {FILE_BYTES_MAX}"),
        ));
    }
    let object = file.open()?;
    let mut bytes = vec![0; object.bytes() as usize];
    object.read_at(0, &mut bytes)?;
    Ok(ImageFileContents { location, bytes })
}

/// The contents of a file.
struct ImageFileContents {
    location: String,
    bytes: Vec<u8>,
}

/// Files in memory.
struct FetchedImages {
    images: Vec<ImageFileContents>,
    decoder: Arc<ImageDecoder>,
}

impl FetchedSamples for FetchedImages {
    fn decode(
        &self,
        index: usize,
        _epoch: Epoch,
        scratch: &mut DecodeScratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DataError> {
        let image = self.images.get(index).ok_or(DataError::NoSuchSample {
            sample: index as u64,
            samples: self.images.len() as u64,
        })?;
        targets.fill(IGNORED);
        let decoded = self
            .decoder
            .decode_for_evaluation(&image.bytes, scratch, out);
        decoded.map_err(|problem| {
            DataError::Record(BadRecord::new(image.location.clone(), 0, Some(0), problem))
        })
    }

    fn bytes(&self) -> u64 {
        self.images
            .iter()
            .map(|image| image.bytes.len() as u64)
            .sum()
    }
}
