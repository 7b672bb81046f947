//! The model passes the cases that it judges engines by.

model::engine_cases!(model::Model::on);
