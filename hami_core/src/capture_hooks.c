/* Stream capture: launches into a captured stream do not run, so they are neither delayed nor
 * measured. */
#include "compute.h"
#include "driver.h"
#include "hooks.h"

EXPORTED cu_result
cuStreamBeginCapture(cu_stream stream)
{
	if (driver()->cuStreamBeginCapture == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuStreamBeginCapture(stream);
	if (result == CU_OK) {
		compute_capture_began();
	}
	return result;
}

EXPORTED cu_result
cuStreamBeginCapture_v2(cu_stream stream, int mode)
{
	if (driver()->cuStreamBeginCapture_v2 == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuStreamBeginCapture_v2(stream, mode);
	if (result == CU_OK) {
		compute_capture_began();
	}
	return result;
}

EXPORTED cu_result
cuStreamBeginCaptureToGraph(cu_stream stream, cu_graph graph, const cu_graph_node *nodes,
			    const void *edges, size_t count, int mode)
{
	if (driver()->cuStreamBeginCaptureToGraph == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result =
	    driver()->cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode);
	if (result == CU_OK) {
		compute_capture_began();
	}
	return result;
}

EXPORTED cu_result
cuStreamEndCapture(cu_stream stream, cu_graph *graph)
{
	if (driver()->cuStreamEndCapture == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuStreamEndCapture(stream, graph);
	compute_capture_ended();
	return result;
}

EXPORTED cu_result
cuStreamBeginCapture_ptsz(cu_stream stream)
{
	if (driver()->cuStreamBeginCapture_ptsz == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuStreamBeginCapture_ptsz(stream);
	if (result == CU_OK) {
		compute_capture_began();
	}
	return result;
}

EXPORTED cu_result
cuStreamBeginCapture_v2_ptsz(cu_stream stream, int mode)
{
	if (driver()->cuStreamBeginCapture_v2_ptsz == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuStreamBeginCapture_v2_ptsz(stream, mode);
	if (result == CU_OK) {
		compute_capture_began();
	}
	return result;
}

EXPORTED cu_result
cuStreamBeginCaptureToGraph_ptsz(cu_stream stream, cu_graph graph, const cu_graph_node *nodes,
				 const void *edges, size_t count, int mode)
{
	if (driver()->cuStreamBeginCaptureToGraph_ptsz == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result =
	    driver()->cuStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, count, mode);
	if (result == CU_OK) {
		compute_capture_began();
	}
	return result;
}

EXPORTED cu_result
cuStreamEndCapture_ptsz(cu_stream stream, cu_graph *graph)
{
	if (driver()->cuStreamEndCapture_ptsz == NULL) {
		return CU_NOT_SUPPORTED;
	}
	cu_result result = driver()->cuStreamEndCapture_ptsz(stream, graph);
	compute_capture_ended();
	return result;
}
