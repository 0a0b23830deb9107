//! The OpenAPI document of a server.

use serde_json::{Value, json};

use super::served_model::ServedModel;

/// Describes the endpoints as an OpenAPI 3.1 document.
pub(super) fn describe(model: &ServedModel) -> Value {
    let manifest = model.manifest();
    let answer = |what: &str| {
        json!({
            "200": { "description": what },
            "default": {
                "description": "An error.",
                "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
            },
        })
    };
    let body = |name: &str| {
        let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
        json!({ "required": true, "content": { "application/json": { "schema": schema } } })
    };
    let get =
        |summary: &str| json!({ "get": { "summary": summary, "responses": answer(summary) } });
    let post = |summary: &str, name: &str| {
        let operation =
            json!({ "summary": summary, "requestBody": body(name), "responses": answer(summary) });
        json!({ "post": operation })
    };
    let mut paths = json!({
        "/v1/predict": post("The predictions of samples.", "Predict"),
        "/v1/model": get("The manifest of the model."),
        "/openapi.json": get("This document."),
        "/healthz": get("Whether the server runs."),
        "/readyz": get("Whether the server accepts requests."),
        "/metrics": get("Metrics for Prometheus."),
    });
    if model.text_task().is_some() {
        paths["/v1/generate"] = post(
            "The continuation or the translation of a prompt.",
            "Generate",
        );
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": manifest.run, "version": manifest.blake3 },
        "paths": paths,
        "components": { "schemas": {
            "Error": {
                "type": "object", "required": ["error"],
                "properties": { "error": { "type": "string" } },
            },
            "Predict": samples(model),
            "Generate": {
                "type": "object", "required": ["prompt"], "additionalProperties": false,
                "properties": {
                    "prompt": { "oneOf": [
                        { "type": "string" },
                        { "type": "array", "items": { "type": "integer", "minimum": 0 } },
                    ] },
                    "max_tokens": { "type": "integer", "minimum": 1 },
                    "temperature": { "type": "number", "minimum": 0, "default": 0 },
                    "top_k": { "type": "integer", "minimum": 1 },
                    "seed": { "type": "integer", "minimum": 0, "default": 0 },
                    "stream": { "type": "boolean", "default": false },
                },
            },
        } },
    })
}

/// Describes the body of a request for predictions.
fn samples(model: &ServedModel) -> Value {
    let manifest = model.manifest();
    let signature = &manifest.signature;
    let mut shape = format!(
        "One array for each sample, of shape {:?} or flat.",
        manifest.input_shape
    );
    if let Some(divisor) = signature.feature_scale {
        shape += &format!(" The numbers of the data divided by {divisor}.");
    }
    let mut samples = json!({ "inputs": { "type": "array", "description": shape } });
    if !signature.columns.is_empty() {
        let numbers = signature.columns.iter();
        let numbers: serde_json::Map<String, Value> = numbers
            .map(|column| (column.clone(), json!({ "type": "number" })))
            .collect();
        samples["rows"] = json!({
            "type": "array", "minItems": 1,
            "items": { "type": "object", "required": signature.columns, "properties": numbers },
            "description": "Instead of `inputs`: one object for each sample, in the units of the data.",
        });
    }
    if model.images().is_some() {
        samples["images"] = json!({
            "type": "array", "minItems": 1,
            "items": { "type": "string", "contentEncoding": "base64" },
            "description": "Instead of `inputs`: one JPEG, PNG or WebP image for each sample.",
        });
    }
    json!({
        "type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": false,
        "properties": samples,
    })
}
