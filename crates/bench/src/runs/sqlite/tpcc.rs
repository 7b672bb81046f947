//! The statements of TPC-C's five transactions, as HTMFS has it on SQLite (Fig. 10, Table 7). It is
//! no TPC-C result: its sizes are small, nobody thinks, and what a terminal would choose is drawn
//! beforehand.

use std::fmt::Write;

use block::Random;

use crate::target::Result;

const DISTRICTS: u64 = 10;
/// Of each district.
const CUSTOMERS: u64 = 60;
const ITEMS: u64 = 2_000;

/// For the notes of a run.
pub fn about() -> String {
    format!(
        "TPC-C: the statements of its transactions (44 % new order, 44 % payment, 4 % each of \
         order status, delivery, stock level); one warehouse, {DISTRICTS} districts of {CUSTOMERS} \
         customers, {ITEMS} items"
    )
}

/// The tables, with what is there at the beginning.
pub fn load() -> Result<String> {
    let mut sql = String::from(
        "BEGIN;
CREATE TABLE warehouse(id INTEGER PRIMARY KEY, tax REAL, ytd REAL);
CREATE TABLE district(id INTEGER PRIMARY KEY, tax REAL, ytd REAL, next INTEGER);
CREATE TABLE customer(d INTEGER, id INTEGER, last TEXT, balance REAL, paid REAL, payments INTEGER,
    data TEXT, PRIMARY KEY(d, id)) WITHOUT ROWID;
CREATE TABLE history(d INTEGER, c INTEGER, amount REAL, data TEXT);
CREATE TABLE orders(d INTEGER, id INTEGER, c INTEGER, carrier INTEGER, lines INTEGER,
    PRIMARY KEY(d, id)) WITHOUT ROWID;
CREATE INDEX orders_of ON orders(d, c, id);
CREATE TABLE new_order(d INTEGER, id INTEGER, PRIMARY KEY(d, id)) WITHOUT ROWID;
CREATE TABLE order_line(d INTEGER, o INTEGER, number INTEGER, item INTEGER, quantity INTEGER,
    amount REAL, info TEXT, PRIMARY KEY(d, o, number)) WITHOUT ROWID;
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL);
CREATE TABLE stock(item INTEGER PRIMARY KEY, quantity INTEGER, ytd INTEGER, orders INTEGER,
    data TEXT);
INSERT INTO warehouse VALUES(1, 0.1, 300000);\n",
    );
    let series = |count: u64| {
        format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<{count})")
    };
    let text = "hex(zeroblob(100))";
    writeln!(
        sql,
        "{} INSERT INTO item SELECT i, 'item ' || i, i % 100 + 1 FROM n;\n\
         {} INSERT INTO stock SELECT i, 50, 0, 0, {text} FROM n;\n\
         {} INSERT INTO district SELECT i, 0.1, 30000, 1 FROM n;\n\
         {} INSERT INTO customer SELECT district.id, i, 'name ' || i % 20, -10, 10, 1, {text} \
         FROM district, n;\nCOMMIT;",
        series(ITEMS),
        series(ITEMS),
        series(DISTRICTS),
        series(CUSTOMERS),
    )?;
    Ok(sql)
}

/// The statements of so many transactions, the same each time.
pub fn transactions(count: u64) -> Result<String> {
    let (mut sql, mut random) = (String::new(), Random::new(17));
    for _ in 0..count {
        let (d, c) = (1 + random.below(DISTRICTS), 1 + random.below(CUSTOMERS));
        sql += "BEGIN IMMEDIATE;\n";
        // Table 7.
        match random.below(100) {
            0..44 => new_order(&mut sql, &mut random, (d, c))?,
            44..88 => payment(&mut sql, &mut random, (d, c))?,
            88..92 => order_status(&mut sql, (d, c))?,
            92..96 => delivery(&mut sql, 1 + random.below(10))?,
            _ => stock_level(&mut sql, d)?,
        }
        sql += "COMMIT;\n";
    }
    Ok(sql)
}

fn new_order(sql: &mut String, random: &mut Random, (d, c): (u64, u64)) -> Result<()> {
    let lines = 5 + random.below(11);
    writeln!(
        sql,
        "SELECT tax FROM warehouse WHERE id=1;
SELECT balance, last FROM customer WHERE d={d} AND id={c};
UPDATE district SET next=next+1 WHERE id={d};
INSERT INTO orders SELECT {d}, next-1, {c}, NULL, {lines} FROM district WHERE id={d};
INSERT INTO new_order SELECT {d}, next-1 FROM district WHERE id={d};"
    )?;
    for number in 1..=lines {
        let (item, quantity) = (1 + random.below(ITEMS), 1 + random.below(10));
        writeln!(
            sql,
            "UPDATE stock SET quantity=CASE WHEN quantity>={quantity}+10 THEN quantity-{quantity} \
             ELSE quantity-{quantity}+91 END, ytd=ytd+{quantity}, orders=orders+1 WHERE item={item};
INSERT INTO order_line SELECT {d}, next-1, {number}, {item}, {quantity}, {quantity}*price, \
             'info of a line in 24 ch' FROM district, item \
             WHERE district.id={d} AND item.id={item};"
        )?;
    }
    Ok(())
}

fn payment(sql: &mut String, random: &mut Random, (d, c): (u64, u64)) -> Result<()> {
    let amount = 1 + random.below(5000);
    Ok(writeln!(
        sql,
        "UPDATE warehouse SET ytd=ytd+{amount} WHERE id=1;
UPDATE district SET ytd=ytd+{amount} WHERE id={d};
UPDATE customer SET balance=balance-{amount}, paid=paid+{amount}, payments=payments+1 \
         WHERE d={d} AND id={c};
INSERT INTO history VALUES({d}, {c}, {amount}, 'warehouse 1 district {d}');"
    )?)
}

fn order_status(sql: &mut String, (d, c): (u64, u64)) -> Result<()> {
    Ok(writeln!(
        sql,
        "SELECT balance, last FROM customer WHERE d={d} AND id={c};
SELECT item, quantity, amount FROM order_line WHERE d={d} AND o=\
         (SELECT max(id) FROM orders WHERE d={d} AND c={c});"
    )?)
}

fn delivery(sql: &mut String, carrier: u64) -> Result<()> {
    for d in 1..=DISTRICTS {
        let oldest = format!("(SELECT min(id) FROM new_order WHERE d={d})");
        writeln!(
            sql,
            "UPDATE orders SET carrier={carrier} WHERE d={d} AND id={oldest};
UPDATE customer SET balance=balance+(SELECT total(amount) FROM order_line WHERE d={d} AND \
             o={oldest}) WHERE d={d} AND id=(SELECT c FROM orders WHERE d={d} AND id={oldest});
DELETE FROM new_order WHERE d={d} AND id={oldest};"
        )?;
    }
    Ok(())
}

fn stock_level(sql: &mut String, d: u64) -> Result<()> {
    Ok(writeln!(
        sql,
        "SELECT count(DISTINCT item) FROM order_line JOIN stock USING(item) WHERE d={d} AND o>=\
         (SELECT next-20 FROM district WHERE id={d}) AND stock.quantity<15;"
    )?)
}
