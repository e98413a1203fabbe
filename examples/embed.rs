//! Embedding nkv: a program starts a rank in its own process, uses its handle, and sends typed
//! messages to its actors. Run it with `cargo run --example embed`. It reads back everything that
//! it stores, and leaves nothing behind.

use nkv::actors::{Ask, GetGauges};
use nkv::message::{Request, Response};
use nkv::{Client, Node, NodeConfig, PutOptions};
use std::time::Duration;

/// How long an actor may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How long the ranks of the job may take to come up.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of one page of the object that is written page by page.
const PAGE_BYTES: u32 = 64 << 10;
/// Pages of that object.
const PAGES: u8 = 4;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A job of its own: two programs that embed nkv on one machine never meet by accident.
    let job = format!("embed-{}", std::process::id());
    let node = Node::start(NodeConfig { job, ..NodeConfig::default() }).await?;
    println!(
        "rank {} at {}, segment {}",
        node.info().rank,
        node.info().control,
        node.info().memory.name().unwrap_or("-")
    );

    wait_until_ready(&node).await?;

    let client = node.client();
    put_and_get(&client).await?;
    write_in_pages(&client).await?;
    find_a_prefix(&client).await?;
    ask_actors(&node).await?;
    client.close().await;
    node.stop().await;
    Ok(())
}

/// Values can be put once every rank of the job (here: one) has joined and reported what it holds.
async fn wait_until_ready(node: &Node) -> Result<(), tokio::time::error::Elapsed> {
    tokio::time::timeout(READY_LIMIT, node.ready()).await
}

/// Puts and gets whole values.
async fn put_and_get(client: &Client) -> nkv::Result<()> {
    client.put(b"greeting", b"hello", &PutOptions::default()).await?;
    let value = client.get(b"greeting").await?;
    println!("get: {}", value.escape_ascii());

    // A reused buffer avoids the page faults of a fresh one.
    let mut buffer = vec![0; 64];
    let bytes = client.get_into(b"greeting", &mut buffer).await?;
    assert_eq!(&buffer[..bytes], b"hello");
    Ok(())
}

/// Writes an object page by page, in any order, as a prefill worker produces it. No client can read
/// it before it is published.
async fn write_in_pages(client: &Client) -> nkv::Result<()> {
    let opts = PutOptions::default().page_bytes(PAGE_BYTES);
    let bytes_total = u64::from(PAGE_BYTES) * u64::from(PAGES);
    let plan = client.open_for_write(b"layers", bytes_total, &opts).await?;
    for page in (0..PAGES).rev() {
        plan.write_page(u32::from(page), &vec![page; PAGE_BYTES as usize])?;
    }
    plan.publish().await?;

    let location = client.get_location(b"layers").await?;
    println!(
        "layers: in {} of rank {}, {} bytes",
        location.tier(),
        location.rank(),
        location.bytes_total()
    );
    let mut value = vec![0; location.bytes_total() as usize];
    client.get_into(b"layers", &mut value).await?;
    let page_of = |at: usize| (at / PAGE_BYTES as usize) as u8;
    assert!(value.iter().enumerate().all(|(at, byte)| *byte == page_of(at)));
    Ok(())
}

/// Looks up blocks 0 to 4 of a request, of which the first three are cached.
async fn find_a_prefix(client: &Client) -> nkv::Result<()> {
    let keys: Vec<String> = (0..5).map(|block| format!("chat/7/{block}")).collect();
    let names: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let blocks: Vec<(&[u8], &[u8])> = names[..3].iter().map(|name| (*name, *name)).collect();
    for outcome in client.put_many(&blocks, &PutOptions::default()).await {
        outcome?;
    }
    let run = client.match_prefix(&names).await?;
    println!("longest prefix: {} of {} blocks", run.len(), names.len());
    assert_eq!(run.len(), 3);
    Ok(())
}

/// The node's actors take the same typed messages that the node itself sends them.
async fn ask_actors(node: &Node) -> nkv::Result<()> {
    // Touches are sent in batches; a flush makes the owner's figures current.
    node.client().flush().await?;
    let gauges = node.owner().call(GetGauges, ANSWER_LIMIT).await?;
    println!("owner: {} objects, {} live bytes", gauges.objects, gauges.live_bytes);

    if let Some(master) = node.master() {
        let ask = Ask { producer: 0, request: Request::Stats };
        if let Response::Stats(stats) = master.call(ask, ANSWER_LIMIT).await? {
            println!("master: {} objects on {} rank(s)", stats.objects, stats.ranks.len());
        }
    }
    Ok(())
}
