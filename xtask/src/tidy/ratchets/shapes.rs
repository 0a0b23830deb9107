//! Shapes of types and functions: errors that are texts, states of several flags, long lists of parameters.

use syn::visit::{self, Visit};

use super::CountedFindings;
use super::files::{ParsedFile, is_test};

/// The most parameters of a function, with the elements of tuples, and without `self`.
const PARAMETERS_MAX: usize = 7;
/// The fewest flags that may be one state.
const FLAGS_MIN: usize = 3;

/// Names of fields with a sentence.
const SENTENCES: [&str; 4] = ["problem", "cause", "reason", "what"];

/// Counts the shapes in all files.
pub(super) fn count(files: &[ParsedFile]) -> CountedFindings {
    let mut counted = CountedFindings::new();
    for name in [
        "text_errors",
        "sentence_variants",
        "structs_of_flags",
        "parameters_above_seven",
    ] {
        counted.insert(name, Vec::new());
    }
    for file in files {
        let mut visitor = ShapeVisitor {
            file,
            counted: &mut counted,
        };
        file.visit(&mut visitor);
    }
    counted
}

struct ShapeVisitor<'a, 'b> {
    file: &'a ParsedFile,
    counted: &'b mut CountedFindings,
}

impl ShapeVisitor<'_, '_> {
    fn add(&mut self, count: &'static str, place: String) {
        self.counted.entry(count).or_default().push(place);
    }

    fn function(&mut self, signature: &syn::Signature) {
        let name = &signature.ident;
        if let syn::ReturnType::Type(_, kind) = &signature.output
            && has_text_error(kind)
        {
            self.add("text_errors", self.file.place(name.span(), name));
        }
        let parameters: usize = signature.inputs.iter().map(elements).sum();
        if parameters > PARAMETERS_MAX {
            let place = self
                .file
                .place(name.span(), format!("{name} has {parameters}"));
            self.add("parameters_above_seven", place);
        }
    }
}

impl<'ast> Visit<'ast> for ShapeVisitor<'_, '_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig);
        }
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        for variant in &item.variants {
            if has_sentence_alone(&item.ident, variant) {
                let name = format!("{}::{}", item.ident, variant.ident);
                let place = self.file.place(variant.ident.span(), name);
                self.add("sentence_variants", place);
            }
        }
        visit::visit_item_enum(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let flags = item
            .fields
            .iter()
            .filter(|field| is_named(&field.ty, "bool"));
        if flags.count() >= FLAGS_MIN {
            let place = self.file.place(item.ident.span(), &item.ident);
            self.add("structs_of_flags", place);
        }
        visit::visit_item_struct(self, item);
    }
}

/// Returns whether a type is `Result<_, String>`.
fn has_text_error(kind: &syn::Type) -> bool {
    let syn::Type::Path(path) = kind else {
        return false;
    };
    let Some(last) = path
        .path
        .segments
        .last()
        .filter(|last| last.ident == "Result")
    else {
        return false;
    };
    let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return false;
    };
    matches!(arguments.args.iter().nth(1), Some(syn::GenericArgument::Type(kind)) if is_named(kind, "String"))
}

/// Returns whether the only value of an error's variant is a sentence.
fn has_sentence_alone(of: &syn::Ident, variant: &syn::Variant) -> bool {
    let is_error = ["Error", "Failure", "Problem"]
        .iter()
        .any(|end| of.to_string().ends_with(end));
    let mut fields = variant.fields.iter();
    let (Some(field), None) = (fields.next(), fields.next()) else {
        return false;
    };
    let is_sentence = match &field.ident {
        Some(name) => SENTENCES.iter().any(|sentence| name == sentence),
        None => true,
    };
    is_error && is_sentence && is_named(&field.ty, "String")
}

fn is_named(kind: &syn::Type, name: &str) -> bool {
    matches!(kind, syn::Type::Path(path) if path.path.is_ident(name))
}

/// Returns how many values a parameter has.
fn elements(parameter: &syn::FnArg) -> usize {
    match parameter {
        syn::FnArg::Receiver(_) => 0,
        syn::FnArg::Typed(typed) => match &*typed.ty {
            syn::Type::Tuple(tuple) => tuple.elems.len(),
            _ => 1,
        },
    }
}
