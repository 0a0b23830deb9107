//! Widths of types: structs with many fields, traits with many methods, structs whose many private fields child modules see.

use syn::punctuated::Punctuated;

use super::CountedFindings;
use super::files::ParsedFile;

/// The most fields of a struct with methods.
const FIELDS_MAX: usize = 15;
/// The most methods of a trait, with those that have a default.
const METHODS_MAX: usize = 8;
/// The most private fields of a struct in a file with child modules, which see all of them.
const PRIVATE_FIELDS_MAX: usize = 8;
/// What describes data that a library reads and writes field by field.
const OF_DATA: [&str; 5] = ["Serialize", "Deserialize", "Args", "Parser", "Subcommand"];

/// Counts the widths in all files.
pub(super) fn count(files: &[ParsedFile], counted: &mut CountedFindings) {
    let (mut structs, mut traits, mut shared) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let items = &file.syntax.items;
        let has_children = items.iter().any(is_child_module);
        for item in items {
            match item {
                syn::Item::Struct(item) if !is_data(item) => {
                    let fields = item.fields.len();
                    let is_private =
                        |field: &&syn::Field| matches!(field.vis, syn::Visibility::Inherited);
                    let private = item.fields.iter().filter(is_private).count();
                    let place =
                        || file.place(item.ident.span(), format!("{} has {fields}", item.ident));
                    if fields > FIELDS_MAX && has_methods(items, &item.ident) {
                        structs.push(place());
                    }
                    if has_children && private > PRIVATE_FIELDS_MAX {
                        shared.push(place());
                    }
                }
                syn::Item::Trait(item) => {
                    let is_method = |item: &&syn::TraitItem| matches!(item, syn::TraitItem::Fn(_));
                    let methods = item.items.iter().filter(is_method).count();
                    // Methods of an extension are written once, and forgotten by no implementation.
                    if methods > METHODS_MAX && !item.ident.to_string().ends_with("Ext") {
                        let name = format!("{} has {methods}", item.ident);
                        traits.push(file.place(item.ident.span(), name));
                    }
                }
                _ => {}
            }
        }
    }
    counted.insert("structs_above_fifteen_fields", structs);
    counted.insert("traits_above_eight_methods", traits);
    counted.insert("fields_shared_with_child_modules", shared);
}

/// Returns whether an item declares a module in another file.
fn is_child_module(item: &syn::Item) -> bool {
    matches!(item, syn::Item::Mod(module) if module.content.is_none())
}

/// Returns whether a struct has methods in its file.
fn has_methods(items: &[syn::Item], name: &syn::Ident) -> bool {
    items.iter().any(|item| match item {
        syn::Item::Impl(block) => {
            let is_own = matches!(&*block.self_ty, syn::Type::Path(path)
                if path.path.segments.last().is_some_and(|last| last.ident == *name));
            is_own && block.items.iter().any(is_method)
        }
        _ => false,
    })
}

fn is_method(item: &syn::ImplItem) -> bool {
    matches!(item, syn::ImplItem::Fn(function) if function.sig.receiver().is_some())
}

/// Returns whether a library reads and writes a struct field by field.
fn is_data(item: &syn::ItemStruct) -> bool {
    type Paths = Punctuated<syn::Path, syn::Token![,]>;
    let derives = item
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("derive"));
    let paths = derives.filter_map(|derive| derive.parse_args_with(Paths::parse_terminated).ok());
    paths.flatten().any(|path| {
        let last = path.segments.last();
        last.is_some_and(|last| OF_DATA.iter().any(|name| last.ident == name))
    })
}
