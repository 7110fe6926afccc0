//! Tests of the sources and of the documents. None of them runs anything of the engine.

#[path = "../common/sources.rs"]
mod sources;

mod calls;
mod docs_names;
mod layers;
mod public_face;
mod types;
