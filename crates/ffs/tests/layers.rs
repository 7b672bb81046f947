//! The modules of the crate are layers: `lib.rs` lists them, and none uses one further down.

#[test]
fn no_module_uses_one_further_down() {
    let uses = testing::layers::check(env!("CARGO_MANIFEST_DIR"));
    assert!(uses > 30, "sources were read");
}
