/* log.h: <metal_logging>. Messages have no reader here: what they would print is evaluated and forgotten. */
namespace msl_unit {
namespace metal {

enum os_log_type { OS_LOG_TYPE_DEFAULT, OS_LOG_TYPE_INFO, OS_LOG_TYPE_DEBUG, OS_LOG_TYPE_ERROR, OS_LOG_TYPE_FAULT };

#define MSL_LOG(name)                                                                                                  \
    template <class... A> MSL_MC void name(const char *, A...) const {}
struct os_log {
    MSL_MC os_log() {}
    MSL_MC os_log(const char *, const char *) {}
    MSL_LOG(log)
    MSL_LOG(log_debug)
    MSL_LOG(log_info)
    MSL_LOG(log_error)
    MSL_LOG(log_fault)
    template <class... A> MSL_MC void log_with_type(os_log_type, const char *, A...) const {}
};
#undef MSL_LOG
[[maybe_unused]] MSL_CONSTANT_DATA os_log os_log_default{};

} // namespace metal
} // namespace msl_unit
