//! HTTP for people, probes and Prometheus: `/healthz` (the process works), `/readyz` (the rank is
//! ready for work), `/status` (everything, as JSON), `/metrics`. It only reads. A slow reader
//! occupies only its own connection, for a bounded time.

mod connections;

use crate::metrics;
use crate::ready::Readiness;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use connections::{Bounded, STEP_LIMIT};
use nkv::{Node, NodeStatus};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;

/// An actor that has handled one message for this long is frozen: the process is not healthy.
const FROZEN_MS: u64 = 10_000;
/// The page at `/`.
const INDEX: &str = "\
/healthz  the process works
/readyz   the rank is ready for work
/status   everything, as JSON
/metrics  for Prometheus
";

/// Serves in the background until the process ends; returns the bound address.
///
/// # Errors
/// If the address cannot be bound.
pub(crate) async fn serve(address: SocketAddr, readiness: Readiness) -> io::Result<SocketAddr> {
    serve_within(address, routes(readiness), STEP_LIMIT).await
}

fn routes(readiness: Readiness) -> Router {
    Router::new()
        .route("/", get(INDEX))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .route("/metrics", get(metrics_text))
        .with_state(readiness)
}

/// Serves; `limit` applies to each of the two steps of a connection.
async fn serve_within(address: SocketAddr, app: Router, limit: Duration) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let local = listener.local_addr()?;
    let app = app.layer(map_response(one_request_each));
    let bounded = Bounded::new(listener, limit);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(bounded, app).await {
            tracing::error!(%error, "the HTTP server ended");
        }
    });
    Ok(local)
}

/// A kept-alive connection would take a place from others.
async fn one_request_each(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn healthz(State(readiness): State<Readiness>) -> Response {
    let status = readiness.node(Node::status);
    let mut actors = status.iter().flat_map(NodeStatus::all_actors);
    match actors.find(|a| a.busy_ms >= FROZEN_MS) {
        None => (StatusCode::OK, health(status.as_ref())).into_response(),
        Some(frozen) => {
            let why = format!(
                "the {} actor has been in one message for {} ms\n",
                frozen.name, frozen.busy_ms
            );
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
    }
}

/// The first line is for probes; with an SSD tier a second one says how the process before this one
/// ended.
fn health(status: Option<&NodeStatus>) -> String {
    let ssd = status.and_then(|status| status.ssd.as_ref());
    let ended = ssd.map(|ssd| {
        let (clean, partial) = (ssd.shutdown_clean, ssd.shutdown_partial_flush);
        format!("shutdown_clean {clean} shutdown_partial_flush {partial}\n")
    });
    "ok\n".to_string() + &ended.unwrap_or_default()
}

async fn readyz(State(readiness): State<Readiness>) -> Response {
    match readiness.ready() {
        Ok(()) => (StatusCode::OK, "ready\n").into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

async fn status(State(readiness): State<Readiness>) -> Response {
    let ready = readiness.ready().err();
    match readiness.node(Node::status) {
        Some(status) => Json(status).into_response(),
        None => Json(serde_json::json!({ "joined": false, "why": ready })).into_response(),
    }
}

async fn metrics_text(State(readiness): State<Readiness>) -> Response {
    let Some(status) = readiness.node(Node::status) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "not joined yet\n").into_response();
    };
    // Bounded by the call's own limit; without the master's answer its figures are left out.
    let handle = readiness.node(|node| node.master().map(|_| node.client())).flatten();
    let cluster = match handle {
        Some(handle) => handle.stats().await.ok(),
        None => None,
    };
    let kind = [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)];
    (kind, metrics::render(&status, cluster.as_ref())).into_response()
}

#[cfg(test)]
mod tests;
