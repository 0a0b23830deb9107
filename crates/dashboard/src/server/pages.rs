//! The files of the page, embedded in the program.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::access::html;

/// Name, type and contents of each file.
const FILES: [(&str, &str, &str); 10] = [
    ("app.js", SCRIPT, include_str!("../../assets/app.js")),
    ("charts.js", SCRIPT, include_str!("../../assets/charts.js")),
    (
        "elements.js",
        SCRIPT,
        include_str!("../../assets/elements.js"),
    ),
    (
        "classes.js",
        SCRIPT,
        include_str!("../../assets/classes.js"),
    ),
    ("panels.js", SCRIPT, include_str!("../../assets/panels.js")),
    ("theme.js", SCRIPT, include_str!("../../assets/theme.js")),
    ("style.css", STYLE, include_str!("../../assets/style.css")),
    (
        "uPlot.js",
        SCRIPT,
        include_str!("../../assets/uPlot.iife.min.js"),
    ),
    (
        "uPlot.css",
        STYLE,
        include_str!("../../assets/uPlot.min.css"),
    ),
    (
        "icon.svg",
        "image/svg+xml",
        include_str!("../../assets/icon.svg"),
    ),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Answers with a file by its name.
pub(super) async fn asset(Path(name): Path<String>) -> Response {
    let file = FILES.iter().find(|(known, ..)| *known == name);
    match file {
        Some((_, kind, text)) => ([(header::CONTENT_TYPE, *kind)], *text).into_response(),
        None => (StatusCode::NOT_FOUND, "no such file").into_response(),
    }
}

/// Answers with the page.
pub(super) fn page() -> Response {
    html(include_str!("../../assets/index.html"))
}

/// Answers with a page that continues to the address without the token.
pub(super) fn entered() -> Response {
    html(include_str!("../../assets/entered.html"))
}

/// Answers with a form for the token.
pub(super) fn login(is_wrong: bool) -> Response {
    let message = match is_wrong {
        true => "This token is not valid.",
        false => "",
    };
    html(include_str!("../../assets/login.html").replace("{message}", message))
}
