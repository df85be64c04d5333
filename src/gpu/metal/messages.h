/* Private to gpu/metal: every message this device sends, with its exact prototype.
 *
 * There is no Objective-C source: a message is a call of objc_msgSend cast to the method's own prototype. Called in any
 * other shape (variadically, say) arguments land in the wrong registers on arm64. So each selector is one row here,
 * which names its prototype, and METAL_SEND is checked against it by the compiler. */
#ifndef SL_GPU_METAL_MESSAGES_H
#define SL_GPU_METAL_MESSAGES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct metal_object *metal_id; /* also classes */
typedef struct metal_selector *metal_sel;
typedef unsigned long metal_uint; /* NSUInteger, and uint64_t on the systems that have Metal */
/* BOOL as the system has it: of a result only the low byte means something. */
#if defined(__x86_64__)
typedef signed char metal_bool;
#else
typedef bool metal_bool;
#endif

/* By value: on arm64 a pointer to a copy, on x86-64 a copy on the stack. The prototype sees to it. */
typedef struct metal_size {
    metal_uint width, height, depth;
} metal_size;

typedef struct metal_range {
    metal_uint location, length; /* not: begin, end */
} metal_range;

/* ---- prototypes: result, then arguments: o object, u unsigned long, i long, b BOOL, p pointer, s size, r range, c
 * byte, E NSError ** */

#define METAL_PROTOTYPE(result, name, ...) typedef result metal_proto_##name(metal_id, metal_sel, ##__VA_ARGS__)
METAL_PROTOTYPE(metal_id, o);
METAL_PROTOTYPE(void, v);
METAL_PROTOTYPE(metal_uint, u);
METAL_PROTOTYPE(double, d);
METAL_PROTOTYPE(void *, p);
METAL_PROTOTYPE(metal_bool, b);
METAL_PROTOTYPE(metal_bool, b_i, long);
METAL_PROTOTYPE(metal_bool, b_q, metal_sel);
METAL_PROTOTYPE(metal_bool, b_uu, metal_uint, metal_uint);
METAL_PROTOTYPE(metal_bool, b_oE, metal_id, metal_id *);
METAL_PROTOTYPE(metal_id, o_p, const void *);
METAL_PROTOTYPE(metal_id, o_o, metal_id);
METAL_PROTOTYPE(metal_id, o_u, metal_uint);
METAL_PROTOTYPE(metal_id, o_uu, metal_uint, metal_uint);
METAL_PROTOTYPE(metal_id, o_puuo, void *, metal_uint, metal_uint, metal_id);
METAL_PROTOTYPE(metal_id, o_oE, metal_id, metal_id *);
METAL_PROTOTYPE(metal_id, o_ooE, metal_id, metal_id, metal_id *);
METAL_PROTOTYPE(metal_id, o_oupE, metal_id, metal_uint, void *, metal_id *);
METAL_PROTOTYPE(void, v_o, metal_id);
METAL_PROTOTYPE(void, v_u, metal_uint);
METAL_PROTOTYPE(void, v_i, long);
METAL_PROTOTYPE(void, v_b, bool);
METAL_PROTOTYPE(void, v_ou, metal_id, metal_uint);
METAL_PROTOTYPE(void, v_ouu, metal_id, metal_uint, metal_uint);
METAL_PROTOTYPE(void, v_puu, const void *, metal_uint, metal_uint);
METAL_PROTOTYPE(void, v_uu, metal_uint, metal_uint);
METAL_PROTOTYPE(void, v_ss, metal_size, metal_size);
METAL_PROTOTYPE(void, v_ououu, metal_id, metal_uint, metal_id, metal_uint, metal_uint);
METAL_PROTOTYPE(void, v_orc, metal_id, metal_range, uint8_t);

/* ---- the table: prototype, name in C, selector -------------------------------------------------------------------
 *
 * Results of alloc, new*, and copy* belong to the caller; all others are borrowed from the autorelease pool. */

#define METAL_SELECTORS(X)                                                                                             \
    /* objects */                                                                                                      \
    X(o, new_, "new")                                                                                                  \
    X(o, retain, "retain")                                                                                             \
    X(v, release, "release")                                                                                           \
    X(b_q, respondsToSelector, "respondsToSelector:")                                                                  \
    X(o_p, stringWithUTF8String, "stringWithUTF8String:")                                                              \
    X(p, UTF8String, "UTF8String")                                                                                     \
    X(o_o, fileURLWithPath, "fileURLWithPath:")                                                                        \
    X(o_o, arrayWithObject, "arrayWithObject:")                                                                        \
    X(u, count, "count")                                                                                               \
    X(o_u, objectAtIndex, "objectAtIndex:")                                                                            \
    X(o, domain, "domain")                                                                                             \
    X(u, code, "code")                                                                                                 \
    X(o, localizedDescription, "localizedDescription")                                                                 \
    /* device */                                                                                                       \
    X(o, name, "name")                                                                                                 \
    X(b_i, supportsFamily, "supportsFamily:")                                                                          \
    X(b, hasUnifiedMemory, "hasUnifiedMemory")                                                                         \
    X(u, maxBufferLength, "maxBufferLength")                                                                           \
    X(u, maxThreadgroupMemoryLength, "maxThreadgroupMemoryLength")                                                     \
    X(u, recommendedMaxWorkingSetSize, "recommendedMaxWorkingSetSize")                                                 \
    X(u, currentAllocatedSize, "currentAllocatedSize")                                                                 \
    X(o_u, newCommandQueue, "newCommandQueueWithMaxCommandBufferCount:")                                               \
    X(o, newSharedEvent, "newSharedEvent")                                                                             \
    X(o, newFence, "newFence")                                                                                         \
    /* memory */                                                                                                       \
    X(o_uu, newBuffer, "newBufferWithLength:options:")                                                                 \
    X(o_puuo, newBufferNoCopy, "newBufferWithBytesNoCopy:length:options:deallocator:")                                 \
    X(p, contents, "contents")                                                                                         \
    X(o_oE, newResidencySet, "newResidencySetWithDescriptor:error:")                                                   \
    X(v_o, addAllocation, "addAllocation:")                                                                            \
    X(v_o, removeAllocation, "removeAllocation:")                                                                      \
    X(v, requestResidency, "requestResidency")                                                                         \
    X(v, endResidency, "endResidency")                                                                                 \
    X(v_o, addResidencySet, "addResidencySet:")                                                                        \
    /* library */                                                                                                      \
    X(o_ooE, newLibraryWithSource, "newLibraryWithSource:options:error:")                                              \
    X(o_oE, newLibraryWithData, "newLibraryWithData:error:")                                                           \
    X(v_u, setLanguageVersion, "setLanguageVersion:")                                                                  \
    X(v_i, setMathMode, "setMathMode:")                                                                                \
    X(v_i, setMathFloatingPointFunctions, "setMathFloatingPointFunctions:")                                            \
    X(v_b, setFastMathEnabled, "setFastMathEnabled:")                                                                  \
    X(o, functionNames, "functionNames")                                                                               \
    X(o_o, newFunction, "newFunctionWithName:")                                                                        \
    X(o, functionConstantsDictionary, "functionConstantsDictionary")                                                   \
    X(o_ooE, newSpecialised, "newFunctionWithName:constantValues:error:")                                              \
    X(v_puu, setConstantValue, "setConstantValue:type:atIndex:")                                                       \
    /* pipeline */                                                                                                     \
    X(v_o, setComputeFunction, "setComputeFunction:")                                                                  \
    X(v_o, setLabel, "setLabel:")                                                                                      \
    X(v_o, setBinaryArchives, "setBinaryArchives:")                                                                    \
    X(o_oupE, newPipeline, "newComputePipelineStateWithDescriptor:options:reflection:error:")                          \
    X(u, maxTotalThreadsPerThreadgroup, "maxTotalThreadsPerThreadgroup")                                               \
    X(u, threadExecutionWidth, "threadExecutionWidth")                                                                 \
    X(u, staticThreadgroupMemoryLength, "staticThreadgroupMemoryLength")                                               \
    X(o_oE, newBinaryArchive, "newBinaryArchiveWithDescriptor:error:")                                                 \
    X(v_o, setUrl, "setUrl:")                                                                                          \
    X(b_oE, addComputePipelineFunctions, "addComputePipelineFunctionsWithDescriptor:error:")                           \
    X(b_oE, serializeToURL, "serializeToURL:error:")                                                                   \
    /* command buffer */                                                                                               \
    X(o, commandBuffer, "commandBufferWithUnretainedReferences")                                                       \
    X(o_u, computeCommandEncoder, "computeCommandEncoderWithDispatchType:")                                            \
    X(o, blitCommandEncoder, "blitCommandEncoder")                                                                     \
    X(v_ou, encodeSignalEvent, "encodeSignalEvent:value:")                                                             \
    X(v_ou, encodeWaitForEvent, "encodeWaitForEvent:value:")                                                           \
    X(v, commit, "commit")                                                                                             \
    X(u, status, "status")                                                                                             \
    X(o, error, "error")                                                                                               \
    X(d, GPUStartTime, "GPUStartTime")                                                                                 \
    X(d, GPUEndTime, "GPUEndTime")                                                                                     \
    /* encoders */                                                                                                     \
    X(v, endEncoding, "endEncoding")                                                                                   \
    X(v_o, updateFence, "updateFence:")                                                                                \
    X(v_o, waitForFence, "waitForFence:")                                                                              \
    X(v_o, setPipeline, "setComputePipelineState:")                                                                    \
    X(v_ouu, setBuffer, "setBuffer:offset:atIndex:")                                                                   \
    X(v_uu, setBufferOffset, "setBufferOffset:atIndex:")                                                               \
    X(v_puu, setBytes, "setBytes:length:atIndex:")                                                                     \
    X(v_uu, setThreadgroupMemoryLength, "setThreadgroupMemoryLength:atIndex:")                                         \
    X(v_ss, dispatchThreadgroups, "dispatchThreadgroups:threadsPerThreadgroup:")                                       \
    X(v_u, memoryBarrier, "memoryBarrierWithScope:")                                                                   \
    X(v_ououu, copyFromBuffer, "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:")                         \
    X(v_orc, fillBuffer, "fillBuffer:range:value:")                                                                    \
    /* shared events */                                                                                                \
    X(v_u, setSignaledValue, "setSignaledValue:")                                                                      \
    X(u, signaledValue, "signaledValue")                                                                               \
    X(b_uu, waitUntilSignaledValue, "waitUntilSignaledValue:timeoutMS:")

#define METAL_CALL(proto, name, text) typedef metal_proto_##proto metal_call_##name;
METAL_SELECTORS(METAL_CALL)
#undef METAL_CALL

/* Classes: name, needed (else: from a later system than the oldest supported). */
#define METAL_CLASSES(X)                                                                                               \
    X(NSString, true)                                                                                                  \
    X(NSURL, true)                                                                                                     \
    X(NSArray, true)                                                                                                   \
    X(MTLCompileOptions, true)                                                                                         \
    X(MTLFunctionConstantValues, true)                                                                                 \
    X(MTLComputePipelineDescriptor, true)                                                                              \
    X(MTLBinaryArchiveDescriptor, true)                                                                                \
    X(MTLResidencySetDescriptor, false)

/* METAL_SEND(api, name, receiver, arguments...): name is the table's name in C. */
#define METAL_SEND(api, name, receiver, ...)                                                                           \
    (((metal_call_##name *)(api)->send)((receiver), (api)->sel.name, ##__VA_ARGS__))

/* ---- constants of Metal ------------------------------------------------------------------------------------------ */

enum {
    METAL_STORAGE_SHARED = 0,
    METAL_STORAGE_PRIVATE = 0x20,
    METAL_HAZARD_UNTRACKED = 0x100,
    METAL_DISPATCH_SERIAL = 0,
    METAL_DISPATCH_CONCURRENT = 1,
    METAL_BARRIER_BUFFERS = 1,
    METAL_FAIL_ON_ARCHIVE_MISS = 4,
    METAL_MATH_SAFE = 0,
    METAL_MATH_FAST = 2,
    METAL_MATH_FUNCTIONS_FAST = 0,
    METAL_MATH_FUNCTIONS_PRECISE = 1,
    METAL_STATUS_COMPLETED = 4,
    METAL_STATUS_ERROR = 5,
};

enum {
    METAL_FAMILY_APPLE1 = 1001,
    METAL_FAMILY_APPLE_LAST = 1021,
    METAL_FAMILY_MAC2 = 2002,
    METAL_FAMILY_METAL3 = 5001
};

/* Types of function constants. */
enum {
    METAL_TYPE_FLOAT = 3,
    METAL_TYPE_HALF = 16,
    METAL_TYPE_INT = 29,
    METAL_TYPE_UINT = 33,
    METAL_TYPE_SHORT = 37,
    METAL_TYPE_USHORT = 41,
    METAL_TYPE_BOOL = 53
};

#endif
