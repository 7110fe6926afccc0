//! C offers all that the engine offers: each method, figure and option has a function, field or
//! constant in C, or a reason here for its absence.

mod common;
#[path = "common/declarations.rs"]
mod declarations;
#[path = "../../hugefork/tests/common/sources.rs"]
mod sources;

use std::collections::BTreeSet;

use declarations::Declarations;
use sources::is_for_tests;
use syn::visit::{self, Visit};

/// Methods, and for each its function, field or constant in C, or the reason for its absence.
const METHODS: &[(&str, &str)] = &[
    ("Pool::heap", "hf_heap_create"),
    ("Pool::builder", "hf_pool_create"),
    ("Pool::name", "hf_pool_name"),
    ("Pool::has_page_grain", "hf_pool_has_page_grain"),
    ("Pool::no_page_grain", "hf_pool_no_page_grain"),
    ("Pool::block_size", "hf_pool_block_size"),
    ("Pool::capacity", "hf_pool_capacity"),
    ("Pool::backing", "hf_pool_backing"),
    ("Pool::fallback_reason", "hf_pool_fallback_reason"),
    ("Pool::clear_kernel", "hf_pool_clear_kernel"),
    ("Pool::copy_kernel", "hf_pool_copy_kernel"),
    ("Pool::reclaim", "hf_pool_reclaim"),
    ("Pool::trim", "hf_pool_trim"),
    ("Pool::stats", "hf_pool_get_stats"),
    ("Pool::children", "the program has set it"),
    ("Pool::region", "hf_region_create"),
    ("Pool::region_with", "hf_region_create"),
    ("PoolBuilder::name", "name"),
    ("PoolBuilder::capacity", "capacity"),
    ("PoolBuilder::block_size", "block_size"),
    ("PoolBuilder::backing", "backing"),
    ("PoolBuilder::fallback", "fallback"),
    ("PoolBuilder::commit", "commit"),
    ("PoolBuilder::core_dump", "core_dump"),
    ("PoolBuilder::swap", "swap"),
    ("PoolBuilder::exports", "exports"),
    ("PoolBuilder::children", "children"),
    ("PoolBuilder::obtain_ahead", "obtain_ahead"),
    ("PoolBuilder::zeroed_stock", "zeroed_high"),
    ("PoolBuilder::reclaim_under_pressure", "reclaim_under_pressure"),
    ("PoolBuilder::build", "hf_pool_create"),
    ("ZeroedStock::keep", "zeroed_low"),
    ("ZeroedStock::cpu_percent", "zeroed_cpu_percent"),
    ("PressureWatch::new", "reclaim_under_pressure"),
    ("PressureWatch::file", "pressure_file"),
    ("PressureWatch::stall", "pressure_stall_us"),
    ("PressureWatch::step", "pressure_step"),
    ("PressureWatch::try_out", "a pool's `pressure_running` tells"),
    ("RegionOptions::new", "hf_region_create"),
    ("RegionOptions::reserve", "reserve"),
    ("RegionOptions::copy_grain", "copy_grain"),
    ("RegionOptions::calls_wait", "calls_wait"),
    ("RegionOptions::max_cow_bytes", "max_cow_bytes"),
    ("Region::in_child", "hf_fork_with"),
    ("Region::fork_process_with", "hf_fork_with"),
    ("Region::len", "hf_region_len"),
    ("Region::pool", "hf_region_pool"),
    ("Region::as_ptr", "hf_region_address"),
    ("Region::as_mut_ptr", "hf_region_address"),
    ("Region::as_mut_slice", "C has addresses"),
    ("Region::as_atomic_u64s", "C has addresses"),
    ("Region::writers_of", "C has addresses"),
    ("Region::values_of", "C has addresses"),
    ("OwnedValues::of", "C has addresses"),
    ("OwnedValues::values", "C has addresses"),
    ("OwnedValues::region", "C has addresses"),
    ("Region::slice_of_mut", "C has addresses"),
    ("Region::populate", "hf_region_populate"),
    ("Region::populate_with", "hf_region_populate_with"),
    ("Region::prepare_write", "hf_region_prepare_write"),
    ("Region::prepare_snapshot", "hf_region_prepare_snapshot"),
    ("Region::discard", "hf_region_discard"),
    ("Region::lazy_free", "hf_region_lazy_free"),
    ("Region::cancel_lazy_free", "hf_region_cancel_lazy_free"),
    ("Snapshot::export_copy_with", "a call of C ends with its process"),
    ("Region::pin", "a pin of C borrows nothing"),
    ("Region::pin_owned", "hf_region_pin"),
    ("Region::observe", "hf_region_observe"),
    ("Region::set_operations", "hf_region_set_operations"),
    ("Region::is_revoked", "hf_region_is_revoked"),
    ("Region::fork", "hf_region_fork"),
    ("Region::fork_with", "hf_region_fork"),
    ("Region::snapshot", "hf_region_snapshot"),
    ("Region::snapshot_with", "hf_region_snapshot"),
    ("Region::snapshot_all", "hf_region_snapshot_all"),
    ("Region::snapshot_all_with", "hf_region_snapshot_all"),
    ("Region::advise", "hf_region_advise"),
    ("Region::origin", "hf_region_origin"),
    ("Region::changed_since", "hf_region_changed_since"),
    ("Region::reset_to", "hf_region_reset_to"),
    ("Region::reset_all", "hf_region_reset_all"),
    ("Region::stats", "hf_region_get_stats"),
    ("Region::read_from", "hf_region_read_from"),
    ("Region::read_from_at", "hf_region_read_from_at"),
    ("Region::write_to", "hf_region_write_to"),
    ("Region::write_to_at", "hf_region_write_to_at"),
    ("Snapshot::len", "hf_snapshot_len"),
    ("Snapshot::id", "hf_snapshot_id"),
    ("Snapshot::parent", "hf_snapshot_parent"),
    ("Snapshot::pool", "hf_snapshot_pool"),
    ("Snapshot::is_revoked", "hf_snapshot_is_revoked"),
    ("Snapshot::map", "hf_snapshot_map"),
    ("Snapshot::view", "hf_snapshot_map shows the same, and hf_snapshot_read_at copies little"),
    ("Snapshot::read_at", "hf_snapshot_read_at"),
    ("Snapshot::fork", "hf_snapshot_fork"),
    ("Snapshot::fork_with", "hf_snapshot_fork"),
    ("Snapshot::write_to", "hf_snapshot_write_to"),
    ("Snapshot::slice_of", "C has addresses"),
    ("Snapshot::reader", "hf_snapshot_read_at"),
    ("PoolStats::metrics", "the fields of `hf_pool_stats` are documented"),
    ("RegionStats::metrics", "the fields of `hf_region_stats` are documented"),
    ("Snapshot::changed_since", "hf_snapshot_changed_since"),
    ("Snapshot::export", "hf_snapshot_export"),
    ("Snapshot::export_copy", "hf_snapshot_export_copy"),
    ("SnapshotId::get", "hf_snapshot_id"),
    ("Changes::blocks", "HF_CHANGES_BY_BLOCK"),
    ("Changes::pages", "HF_CHANGES_BY_PAGE"),
    ("Changes::written", "HF_CHANGES_WRITTEN"),
    ("Export::extents", "hf_export_extents"),
    ("Export::pool", "hf_export_pool"),
    ("Extents::len", "hf_export_len"),
    ("Extents::page_size", "hf_export_page_size"),
    ("Extents::iter", "hf_export_extent"),
    ("Imported::map", "hf_import_map"),
    ("Imported::len", "hf_import_len"),
    ("Imported::as_ptr", "hf_import_address"),
    ("Imported::as_mut_ptr", "hf_import_address"),
    ("Imported::read_at", "hf_import_read_at"),
    ("Imported::sealed", "hf_import_is_sealed"),
    ("Imported::bytes", "C has addresses"),
    ("Imported::bytes_mut", "C has addresses"),
    ("OwnedPin::range", "hf_pin_offset"),
    ("OwnedPin::as_non_null", "hf_pin_address"),
    ("Heap::len", "hf_region_len"),
    ("Heap::operation", "hf_operations_enter"),
    ("Heap::operations", "hf_heap_operations"),
    ("Heap::region", "hf_heap_region"),
    ("Heap::snapshot", "hf_region_snapshot"),
    ("Heap::reset_to", "hf_region_reset_to"),
    ("Heap::stats", "hf_region_get_stats"),
    ("Heap::contains", "C has addresses"),
    ("Heap::put", "hf_heap_alloc"),
    ("Heap::scope", "C has no global allocator to switch"),
    ("Operations::new", "hf_operations_create"),
    ("Operations::with_patience", "hf_operations_create"),
    ("Operations::enter", "hf_operations_enter"),
    ("Operations::run", "hf_operations_enter"),
    ("Operations::leave", "hf_operations_leave"),
];

/// The types whose methods C offers.
fn types() -> BTreeSet<&'static str> {
    METHODS.iter().map(|(method, _)| method.split_once("::").unwrap().0).collect()
}

/// Figures of the engine without a C field of the same name, and the field that contains them.
const FIGURES: &[(&str, &str)] = &[
    ("PoolStats::supply", "supply_running"),
    ("PoolStats::stock", "stock_running"),
    ("PoolStats::pressure", "pressure_running"),
    ("PoolStats::faults", "hf_pool_get_fault_stats"),
    ("RegionStats::faults", "hf_region_get_fault_stats"),
    ("FaultStats::handler", "handler_count"),
    ("FaultStats::held_by_promotion", "held_by_promotion_count"),
    ("FaultStats::held_by_write_back", "held_by_write_back_count"),
];

/// The engine's statistics structs, the C struct with their fields, and the prefix of the fields there.
const STRUCTS: [(&str, &str, &str); 7] = [
    ("PoolStats", "hf_pool_stats", ""),
    ("SupplyStats", "hf_pool_stats", "supply_"),
    ("StockStats", "hf_pool_stats", "stock_"),
    ("PressureStats", "hf_pool_stats", "pressure_"),
    ("RegionStats", "hf_region_stats", ""),
    ("FaultStats", "hf_fault_stats", ""),
    ("LazyFreed", "hf_lazy_freed", ""),
];

/// The engine's enums, and the prefix of their constants.
const CHOICES: [(&str, &str); 10] = [
    ("Backing", "HF_BACKING"),
    ("Granted", "HF_GRANTED"),
    ("Fallback", "HF_FALLBACK"),
    ("Commit", "HF_COMMIT"),
    ("CoreDump", "HF_CORE_DUMP"),
    ("Swap", "HF_SWAP"),
    ("Children", "HF_CHILDREN"),
    ("Reserve", "HF_RESERVE"),
    ("CopyGrain", "HF_COPY_GRAIN"),
    ("Advice", "HF_ADVICE"),
];

/// The engine's items of the types above.
#[derive(Default)]
struct Engine {
    methods: BTreeSet<String>,
    fields: BTreeSet<(String, String)>,
    variants: BTreeSet<(String, String)>,
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

impl<'ast> Visit<'ast> for Engine {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let syn::Type::Path(of) = &*item.self_ty else { return };
        let name = of.path.segments.last().unwrap().ident.to_string();
        if item.trait_.is_some() || !types().contains(name.as_str()) {
            return;
        }
        let methods = item.items.iter().filter_map(|item| match item {
            syn::ImplItem::Fn(method) if is_public(&method.vis) => Some(format!("{name}::{}", method.sig.ident)),
            _ => None,
        });
        self.methods.extend(methods);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        for field in item.fields.iter().filter(|field| is_public(&field.vis)) {
            let name = field.ident.as_ref().map_or_else(String::new, ToString::to_string);
            self.fields.insert((item.ident.to_string(), name));
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if is_public(&item.vis) {
            let variants = item.variants.iter().map(|variant| (item.ident.to_string(), variant.ident.to_string()));
            self.variants.extend(variants);
        }
    }
}

fn engine() -> Engine {
    let mut found = Engine::default();
    sources::engine().files.values().for_each(|file| found.visit_file(file));
    found
}

/// Whether a word is a function, a constant or a field of the header.
fn is_declared(declared: &Declarations, name: &str) -> bool {
    let is_field = |fields: &String| fields.split([';', '*', ' ', '(', ')']).any(|word| word == name);
    let is_known = declared.functions.contains_key(name) || declared.constants.contains_key(name);
    is_known || declared.structs.values().any(is_field)
}

#[test]
fn every_method_is_offered() {
    let (engine, declared) = (engine(), Declarations::of_header());
    let listed: BTreeSet<String> = METHODS.iter().map(|(method, _)| (*method).to_owned()).collect();
    let missing: Vec<_> = engine.methods.difference(&listed).collect();
    assert!(missing.is_empty(), "offer these in C, or say in METHODS why not: {missing:?}");
    let gone: Vec<_> = listed.difference(&engine.methods).collect();
    assert!(gone.is_empty(), "the engine has these no more: {gone:?}");
    for (method, offered) in METHODS.iter().filter(|(_, offered)| !offered.contains(' ')) {
        assert!(is_declared(&declared, offered), "{method} is to be offered by {offered}, which is not there");
    }
}

#[test]
fn every_figure_is_offered() {
    let (engine, declared) = (engine(), Declarations::of_header());
    let mut found = 0;
    for (of, field) in &engine.fields {
        let Some((_, name, before)) = STRUCTS.iter().find(|(known, ..)| known == of) else { continue };
        found += 1;
        let other = FIGURES.iter().find(|(figure, _)| *figure == format!("{of}::{field}"));
        let is_there = match other {
            Some((_, other)) => is_declared(&declared, other),
            None => {
                let fields = &declared.structs[*name];
                let is = |wanted: &str| fields.contains(&format!(" {before}{wanted};"));
                is(field) || is(&format!("{field}_ns"))
            }
        };
        assert!(is_there, "{of}::{field} is not in {name}");
    }
    assert!(found > 50, "{found}: does this look at figures at all?");
}

#[test]
fn every_choice_has_its_constant() {
    let (engine, declared) = (engine(), Declarations::of_header());
    for (name, before) in CHOICES {
        let variants = engine.variants.iter().filter(|(of, _)| of == name).map(|(_, variant)| variant);
        let mut found = 0;
        for variant in variants {
            found += 1;
            let constant = format!("{before}_{}", in_capitals(variant));
            assert!(declared.constants.contains_key(&constant), "{name}::{variant} has no constant {constant}");
        }
        assert!(found > 1, "{name} is not there");
    }
}

/// `ShmemBase` as `SHMEM_BASE`.
fn in_capitals(name: &str) -> String {
    let letter = |(nth, letter): (usize, char)| {
        let before = if nth > 0 && letter.is_uppercase() { "_" } else { "" };
        format!("{before}{}", letter.to_ascii_uppercase())
    };
    name.chars().enumerate().map(letter).collect()
}
