// Graphs and the loops in them.
#include "runtime.h"

static std::map<cudaGraphConditionalHandle, std::pair<unsigned, unsigned>> defaults;
static cudaGraphConditionalHandle next_h = 1;
static void run(const std::vector<Node*>& nodes) {
  if (idle()) return;
  for (auto n : nodes)
    if (n->fn) n->fn();
}
API cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* h, cudaGraph_t, unsigned def,
                                                 unsigned flags) {
  LOCK;
  *h = next_h++;
  defaults[*h] = {def, flags};
  conditions[*h] = def;
  return cudaSuccess;
}
API cudaError_t cudaGraphAddNode(cudaGraphNode_t* out, cudaGraph_t g, const cudaGraphNode_t*, const cudaGraphEdgeData*,
                                 size_t, cudaGraphNodeParams* p) {
  LOCK;
  if (p->type != cudaGraphNodeTypeConditional) RET(cudaErrorNotSupported);
  auto body = new Graph;
  auto h = p->conditional.handle;
  bool loop = p->conditional.type == cudaGraphCondTypeWhile;
  static thread_local cudaGraph_t outs[8];
  static thread_local int oi = 0;
  oi = (oi + 1) % 8;
  outs[oi] = (cudaGraph_t)body;
  p->conditional.phGraph_out = &outs[oi];
  auto n = new Node{[=] {
                      if (loop) {
                        while (conditions[h]) run(body->nodes);
                      } else if (conditions[h])
                        run(body->nodes);
                    },
                    cudaGraphNodeTypeConditional};
  ((Graph*)g)->nodes.push_back(n);
  *out = (cudaGraphNode_t)n;
  return cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* ns, size_t* n) {
  auto& v = ((Graph*)g)->nodes;
  if (ns)
    for (size_t i = 0; i < std::min(*n, v.size()); i++) ns[i] = (cudaGraphNode_t)v[i];
  *n = v.size();
  return cudaSuccess;
}
API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* n) {
  *n = 0;
  return cudaSuccess;
}
API cudaError_t cudaGraphNodeGetType(cudaGraphNode_t n, cudaGraphNodeType* t) {
  *t = ((Node*)n)->type;
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long) {
  LOCK;
  UNSAFE;
  auto x = new Exec{((Graph*)g)->nodes};
  *e = (cudaGraphExec_t)x;
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long f) {
  return cudaGraphInstantiateWithFlags(e, g, f);
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
  LOCK;
  auto x = (Exec*)e;
  RET(put(
      stream_of(s),
      [=] {
        for (auto& d : defaults)
          if (d.second.second & cudaGraphCondAssignDefault) conditions[d.first] = d.second.first;
        run(x->nodes);
      },
      cudaGraphNodeTypeGraph));
}
API cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) {
  LOCK;
  return cudaSuccess;
}
API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }
struct UO {
  void* p;
  cudaHostFn_t d;
  int n;
};
API cudaError_t cudaUserObjectCreate(cudaUserObject_t* o, void* p, cudaHostFn_t d, unsigned n, unsigned) {
  *o = (cudaUserObject_t) new UO{p, d, (int)n};
  return cudaSuccess;
}
API cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }
API cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { return cudaSuccess; }
