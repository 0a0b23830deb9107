//! [`ModuleGraph`]: which files of a crate import from which, with re-exports followed to the file that defines the name.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::files::{ParsedFile, is_test};

/// A path of modules from the root of the crate.
type ModulePath = Vec<String>;

/// The files of a crate and their imports.
pub(super) struct ModuleGraph {
    pub(super) package: String,
    /// The name of the file of each module.
    pub(super) files: BTreeMap<ModulePath, String>,
    /// Each import: the module that has it, and the module that it comes from.
    pub(super) imports: BTreeSet<(ModulePath, ModulePath)>,
    /// Names that are imported through the root, with the module that imports them.
    pub(super) from_root: Vec<(ModulePath, String)>,
}

impl ModuleGraph {
    /// Returns the modules that a module imports from.
    fn imports_of(&self, module: &ModulePath) -> impl Iterator<Item = &ModulePath> {
        let own = self.imports.range((module.clone(), Vec::new())..);
        own.take_while(move |(from, _)| from == module)
            .map(|(_, to)| to)
    }
}

/// The names that modules re-export, with their paths.
type Reexports = BTreeMap<(ModulePath, String), ModulePath>;

/// Returns the graph of each crate.
pub(super) fn graphs(files: &[ParsedFile]) -> Vec<ModuleGraph> {
    let packages: BTreeSet<&str> = files.iter().map(|file| file.package.as_str()).collect();
    packages
        .into_iter()
        .map(|package| {
            let own = files.iter().filter(|file| file.package == package);
            graph(package, &own.collect::<Vec<_>>())
        })
        .collect()
}

fn graph(package: &str, files: &[&ParsedFile]) -> ModuleGraph {
    let names: BTreeMap<ModulePath, String> = files
        .iter()
        .map(|file| (file.module.clone(), file.name.clone()))
        .collect();
    let paths: Vec<(ModulePath, Vec<WrittenPath>)> = files
        .iter()
        .map(|file| (file.module.clone(), written_paths(file, &names)))
        .collect();
    let mut reexports = Reexports::new();
    for (module, written) in &paths {
        for path in written.iter().filter(|path| path.is_public) {
            if let Some(name) = &path.alias {
                reexports.insert((module.clone(), name.clone()), path.parts.clone());
            }
        }
    }
    let mut graph = ModuleGraph {
        package: package.to_owned(),
        files: names,
        imports: BTreeSet::new(),
        from_root: Vec::new(),
    };
    for (module, written) in paths {
        for path in written {
            let is_root = module.is_empty();
            let first = path.parts.first().cloned().unwrap_or_default();
            let is_name = !graph.files.contains_key(std::slice::from_ref(&first));
            if path.is_import && is_name && !is_root && !first.is_empty() && path.is_absolute {
                graph
                    .from_root
                    .push((module.clone(), path.parts.join("::")));
            }
            let found = resolve(&path.parts, &graph.files, &reexports);
            // The root holds the modules; it is no part of them.
            if found != module && !found.is_empty() && !is_root {
                graph.imports.insert((module.clone(), found));
            }
        }
    }
    graph
}

/// Returns the module in which a path ends, with re-exports followed.
fn resolve(
    parts: &[String],
    files: &BTreeMap<ModulePath, String>,
    reexports: &Reexports,
) -> ModulePath {
    let mut parts = parts.to_vec();
    // A circle of re-exports does not compile, so this is a limit for what is not understood.
    for _ in 0..8 {
        let depth = (0..=parts.len())
            .rev()
            .find(|&depth| files.contains_key(&parts[..depth]));
        let depth = depth.unwrap_or(0);
        let Some(name) = parts.get(depth) else {
            return parts;
        };
        let key = (parts[..depth].to_vec(), name.clone());
        match reexports.get(&key) {
            Some(further) => {
                let rest = parts.split_off(depth + 1);
                parts = further.iter().cloned().chain(rest).collect();
            }
            None => {
                parts.truncate(depth);
                return parts;
            }
        }
    }
    Vec::new()
}

/// A path of this crate that a file has.
struct WrittenPath {
    /// From the root of the crate.
    parts: ModulePath,
    /// The name in the file, if it is imported.
    alias: Option<String>,
    is_import: bool,
    is_public: bool,
    /// Whether it is written with `crate`.
    is_absolute: bool,
}

fn written_paths(file: &ParsedFile, files: &BTreeMap<ModulePath, String>) -> Vec<WrittenPath> {
    let mut visitor = PathVisitor {
        module: &file.module,
        files,
        found: Vec::new(),
    };
    file.visit(&mut visitor);
    visitor.found
}

struct PathVisitor<'a> {
    module: &'a ModulePath,
    files: &'a BTreeMap<ModulePath, String>,
    found: Vec<WrittenPath>,
}

impl PathVisitor<'_> {
    /// Returns a path from the root of the crate, and whether it is written with `crate`; `None` if it is of another crate or of the
    /// file itself.
    fn absolute(&self, written: &[String]) -> Option<(ModulePath, bool)> {
        let first = written.first()?;
        if first == "crate" {
            return Some((written[1..].to_vec(), true));
        }
        let up = written.iter().take_while(|part| *part == "super").count();
        let start = usize::from(first == "self").max(up);
        let mut base = self.module.clone();
        base.truncate(base.len().checked_sub(up)?);
        let child = [&base[..], &written[start..written.len().min(start + 1)]].concat();
        if start == 0 && !self.files.contains_key(&child) {
            return None;
        }
        Some(([&base[..], &written[start..]].concat(), false))
    }

    fn import(&mut self, tree: &syn::UseTree, before: &[String], is_public: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        let (path, alias) = match tree {
            syn::UseTree::Path(path) => {
                return self.import(&path.tree, &with(&path.ident), is_public);
            }
            syn::UseTree::Group(group) => {
                group
                    .items
                    .iter()
                    .for_each(|tree| self.import(tree, before, is_public));
                return;
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                (before.to_vec(), before.last().cloned())
            }
            syn::UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
            syn::UseTree::Rename(renamed) => {
                (with(&renamed.ident), Some(renamed.rename.to_string()))
            }
            syn::UseTree::Glob(_) => (before.to_vec(), None),
        };
        if let Some((parts, is_absolute)) = self.absolute(&path) {
            self.found.push(WrittenPath {
                parts,
                alias,
                is_import: true,
                is_public,
                is_absolute,
            });
        }
    }
}

impl<'ast> Visit<'ast> for PathVisitor<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A private import can be used by modules below, as a re-export can.
        self.import(&item.tree, &[], true);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        if parts.len() > 1
            && let Some((parts, is_absolute)) = self.absolute(&parts)
        {
            self.found.push(WrittenPath {
                parts,
                alias: None,
                is_import: false,
                is_public: false,
                is_absolute,
            });
        }
        visit::visit_path(self, path);
    }
}

/// Returns the names that are imported through the root of a crate.
pub(super) fn root_imports(graphs: &[ModuleGraph]) -> Vec<String> {
    let of = |graph: &ModuleGraph| {
        let findings = graph
            .from_root
            .iter()
            .map(|(module, name)| format!("{}: {name}", graph.files[module]));
        findings.collect::<Vec<_>>()
    };
    graphs.iter().flat_map(of).collect()
}

/// Returns the files that are in circles of more than two files, each with the size of its circle and its imports from there.
pub(super) fn loops(graphs: &[ModuleGraph]) -> Vec<String> {
    let mut found = Vec::new();
    for graph in graphs {
        for circle in circles(graph).into_iter().filter(|circle| circle.len() > 2) {
            found.extend(circle.iter().map(|module| {
                let imported: Vec<String> = graph
                    .imports_of(module)
                    .filter(|to| circle.contains(*to))
                    .map(|to| to.join("::"))
                    .collect();
                format!(
                    "{}: in a circle of {} files, imports from {}",
                    graph.files[module],
                    circle.len(),
                    imported.join(", ")
                )
            }));
        }
    }
    found
}

/// Returns the sets of modules that reach each other.
fn circles(graph: &ModuleGraph) -> Vec<BTreeSet<ModulePath>> {
    let reached: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = graph
        .files
        .keys()
        .map(|module| (module, reachable(graph, module)))
        .collect();
    let mut left: BTreeSet<&ModulePath> = graph.files.keys().collect();
    let mut found = Vec::new();
    while let Some(module) = left.pop_first() {
        let mutual = reached[module]
            .iter()
            .filter(|other| reached[*other].contains(module));
        let circle: BTreeSet<ModulePath> = mutual.map(|other| (*other).clone()).collect();
        left.retain(|other| !circle.contains(*other));
        found.push(circle);
    }
    found
}

fn reachable<'a>(graph: &'a ModuleGraph, from: &'a ModulePath) -> BTreeSet<&'a ModulePath> {
    let mut found = BTreeSet::new();
    let mut left = vec![from];
    while let Some(module) = left.pop() {
        for to in graph.imports_of(module) {
            if found.insert(to) {
                left.push(to);
            }
        }
    }
    found
}
