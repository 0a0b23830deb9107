//! [`ParsedFile`]: a file of a crate, with its position among the modules.

use proc_macro2::Span;
use syn::visit::Visit;

use crate::tidy::{Source, is_workspace_code};

/// A file without its tests.
pub(super) struct ParsedFile {
    pub(super) name: String,
    /// The folder of the crate.
    pub(super) package: String,
    /// The path of the module, such as `["a", "b"]` of `src/a/b.rs`; empty for the root.
    pub(super) module: Vec<String>,
    pub(super) syntax: syn::File,
}

/// Returns whether a file is code of a crate, and not a test.
pub(super) fn is_counted(name: &str) -> bool {
    let is_code = is_workspace_code(name) && name.contains("/src/");
    is_code
        && !name.starts_with("xtask/")
        && !name.contains("/tests/")
        && !name.ends_with("/tests.rs")
}

impl ParsedFile {
    /// Parses a file and removes its tests.
    pub(super) fn parse(file: &Source) -> Result<Self, syn::Error> {
        let mut syntax = syn::parse_file(&file.text)?;
        syntax.items.retain(|item| !is_test(attributes(item)));
        let (package, inside) = file.name.split_once("/src/").unwrap_or_default();
        let path = inside.trim_end_matches(".rs");
        let is_root = matches!(path, "lib" | "main");
        let parts = path.split('/').filter(|part| !is_root && *part != "mod");
        Ok(Self {
            name: file.name.clone(),
            package: package.to_owned(),
            module: parts.map(str::to_owned).collect(),
            syntax,
        })
    }

    /// Describes a position in the file.
    pub(super) fn place(&self, span: Span, what: impl std::fmt::Display) -> String {
        format!("{}:{}: {what}", self.name, span.start().line)
    }

    /// Passes the syntax of the file to a visitor.
    pub(super) fn visit<'a>(&'a self, visitor: &mut impl Visit<'a>) {
        visitor.visit_file(&self.syntax);
    }
}

/// Returns whether attributes leave an item out of a build without tests.
pub(super) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        let inner = attribute.parse_args::<syn::Path>();
        is_cfg && inner.is_ok_and(|path| path.is_ident("test"))
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        _ => &[],
    }
}
