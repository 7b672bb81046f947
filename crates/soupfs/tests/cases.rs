//! SoupFS under the cases that every engine must pass.

mod common;

model::engine_cases!(common::Soup::default());
