//! Values inside JSON members: the field `json.label` is `label` of the member `json`.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::super::{NumberType, Value};

/// The reason why a field of a JSON member cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum JsonError {
    #[error("member `{member}` is not valid JSON: {cause}")]
    Syntax {
        member: String,
        cause: serde_json::Error,
    },
    #[error("`{path}` is an object; name one of its values")]
    Object { path: String },
    #[error("`{path}` holds values that are neither numbers nor texts")]
    Values { path: String },
}

/// Returns member and path of a field inside a JSON member: `json.size.0` is item 0 of `size` of `json`.
pub(super) fn split(field: &str) -> Option<(&str, &str)> {
    let (member, path) = field.split_once("json.")?;
    let is_json = member.is_empty() || member.ends_with('.');
    let member = &field[..member.len() + "json".len()];
    (is_json && !path.is_empty()).then_some((member, path))
}

/// Returns the value at a path; `None` if it is absent or null.
pub(super) fn value(document: &Json, path: &str) -> Result<Option<Value<'static>>, JsonError> {
    let mut at = document;
    for part in path.split('.') {
        let next = match at {
            Json::Object(object) => object.get(part),
            Json::Array(array) => part.parse().ok().and_then(|index: usize| array.get(index)),
            _ => None,
        };
        match next {
            Some(next) => at = next,
            None => return Ok(None),
        }
    }
    match at {
        Json::Null => Ok(None),
        Json::String(text) => Ok(Some(Value::Bytes(Cow::Owned(text.clone().into_bytes())))),
        Json::Array(array) if array.iter().all(Json::is_string) && !array.is_empty() => {
            let texts = array.iter().filter_map(Json::as_str);
            let list = texts.map(|text| Cow::Owned(text.as_bytes().to_vec()));
            Ok(Some(Value::List(list.collect())))
        }
        Json::Array(array) => numbers(array, path).map(Some),
        Json::Object(_) => Err(JsonError::Object {
            path: path.to_owned(),
        }),
        one => numbers(std::slice::from_ref(one), path).map(Some),
    }
}

fn numbers(all: &[Json], path: &str) -> Result<Value<'static>, JsonError> {
    let integer = |one: &Json| one.as_i64().or_else(|| one.as_bool().map(i64::from));
    let integers: Option<Vec<i64>> = all.iter().map(integer).collect();
    if let Some(integers) = integers {
        return Ok(Value::integers(&integers));
    }
    let mut bytes = Vec::with_capacity(8 * all.len());
    for one in all {
        let number = one.as_f64();
        let number = number.ok_or_else(|| JsonError::Values {
            path: path.to_owned(),
        })?;
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    Ok(Value::Numbers {
        dtype: NumberType::F64,
        bytes: Cow::Owned(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_in_json_members_are_named_by_their_path() {
        assert_eq!(split("json.label"), Some(("json", "label")));
        assert_eq!(split("meta.json.a.0"), Some(("meta.json", "a.0")));
        for none in ["json", "json.", "xjson.a", "jpg", "label"] {
            assert_eq!(split(none), None, "{none}");
        }
    }

    #[test]
    fn values_of_all_kinds_are_found() {
        let text = r#"{"label": 7, "half": 0.5, "is": true, "name": "cat", "none": null,
            "box": [1, 2.5], "size": [3, 4], "tags": ["a", "b"], "deep": {"er": [[9]]}}"#;
        let document: Json = serde_json::from_str(text).unwrap();
        let at = |path: &str| value(&document, path).map_err(|error| error.to_string());
        assert_eq!(at("label"), Ok(Some(Value::integers(&[7]))));
        assert_eq!(at("is"), Ok(Some(Value::integers(&[1]))));
        assert_eq!(at("size"), Ok(Some(Value::integers(&[3, 4]))));
        assert_eq!(at("size.1"), Ok(Some(Value::integers(&[4]))));
        assert_eq!(at("deep.er.0"), Ok(Some(Value::integers(&[9]))));
        assert_eq!(at("name"), Ok(Some(Value::Bytes(b"cat"[..].into()))));
        assert!(matches!(at("tags"), Ok(Some(Value::List(list))) if list.len() == 2));
        let Ok(Some(Value::Numbers { dtype, bytes })) = at("box") else {
            panic!("no numbers");
        };
        assert_eq!(
            (dtype, dtype.float(&bytes, 1)),
            (NumberType::F64, Some(2.5))
        );
        assert_eq!(
            (at("none"), at("absent"), at("label.x")),
            (Ok(None), Ok(None), Ok(None))
        );
        assert!(at("deep").unwrap_err().contains("object"));
        assert!(at("deep.er").unwrap_err().contains("neither"));
    }
}
