//! The identity of a run: the settings that the trained bits depend on.
//!
//! A setting is part of the identity unless it is serialized with [`ronde_core::outside_identity`]. That function
//! writes a newtype with a known name, which formats such as TOML skip, and which [`paths_outside`] finds.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use serde::ser::{Impossible, SerializeStruct, Serializer};

use super::text::join;

/// Returns the dotted path and value of every setting of a table, without those under `outside`. Sorted.
pub(super) fn parts(table: &toml::Table, outside: &BTreeSet<String>) -> Vec<(String, String)> {
    let mut parts = Vec::new();
    flatten("", table, outside, &mut parts);
    parts.sort_unstable();
    parts
}

fn flatten(
    prefix: &str,
    table: &toml::Table,
    outside: &BTreeSet<String>,
    parts: &mut Vec<(String, String)>,
) {
    for (key, value) in table {
        let path = join(prefix, key);
        if outside.contains(&path) {
            continue;
        }
        match value {
            toml::Value::Table(table) => flatten(&path, table, outside, parts),
            value => parts.push((path, value.to_string())),
        }
    }
}

/// Returns the dotted paths of the settings of `run` that are not part of the identity.
pub(super) fn paths_outside(run: &impl Serialize) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let finder = OutsideFinder {
        path: String::new(),
        paths: &mut paths,
    };
    // Only values that are no settings are refused, and there is nothing to find in them.
    let _ = run.serialize(finder);
    paths
}

/// Visits a value and records the paths that are marked.
struct OutsideFinder<'a> {
    path: String,
    paths: &'a mut BTreeSet<String>,
}

/// A value without named fields, in which there is nothing to find.
#[derive(Debug)]
struct NoFields;

impl fmt::Display for NoFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no named fields")
    }
}

impl std::error::Error for NoFields {}

impl serde::ser::Error for NoFields {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

impl SerializeStruct for OutsideFinder<'_> {
    type Ok = ();
    type Error = NoFields;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), NoFields> {
        // A value without fields ends the visit of that value alone.
        let _ = value.serialize(OutsideFinder {
            path: join(&self.path, key),
            paths: self.paths,
        });
        Ok(())
    }

    fn end(self) -> Result<(), NoFields> {
        Ok(())
    }
}

/// Implements methods of values without named fields.
macro_rules! no_fields {
    ($($method:ident($($argument:ty),*) -> $output:ty;)*) => {
        $(fn $method(self, $(_: $argument),*) -> Result<$output, NoFields> {
            Err(NoFields)
        })*
    };
}

impl Serializer for OutsideFinder<'_> {
    type Ok = ();
    type Error = NoFields;
    type SerializeSeq = Impossible<(), NoFields>;
    type SerializeTuple = Impossible<(), NoFields>;
    type SerializeTupleStruct = Impossible<(), NoFields>;
    type SerializeTupleVariant = Impossible<(), NoFields>;
    type SerializeMap = Impossible<(), NoFields>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Impossible<(), NoFields>;

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), NoFields> {
        if name == ronde_core::OUTSIDE_IDENTITY {
            self.paths.insert(self.path);
            return Ok(());
        }
        value.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), NoFields> {
        value.serialize(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, NoFields> {
        Ok(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), NoFields> {
        Err(NoFields)
    }

    no_fields! {
        serialize_bool(bool) -> ();
        serialize_i8(i8) -> ();
        serialize_i16(i16) -> ();
        serialize_i32(i32) -> ();
        serialize_i64(i64) -> ();
        serialize_u8(u8) -> ();
        serialize_u16(u16) -> ();
        serialize_u32(u32) -> ();
        serialize_u64(u64) -> ();
        serialize_f32(f32) -> ();
        serialize_f64(f64) -> ();
        serialize_char(char) -> ();
        serialize_str(&str) -> ();
        serialize_bytes(&[u8]) -> ();
        serialize_none() -> ();
        serialize_unit() -> ();
        serialize_unit_struct(&'static str) -> ();
        serialize_unit_variant(&'static str, u32, &'static str) -> ();
        serialize_seq(Option<usize>) -> Self::SerializeSeq;
        serialize_tuple(usize) -> Self::SerializeTuple;
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant;
        serialize_map(Option<usize>) -> Self::SerializeMap;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant;
    }
}
